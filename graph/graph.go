// Package graph holds the portable compute graph: typed values, the ops that make them, the variables that outlive
// a run, and the builder that puts them together. A graph defines the results; shaders and runtime decide how they are
// computed.
package graph

import (
	"fmt"
	"slices"
)

// Value is one tensor in a graph: a result of a Node.
type Value struct {
	Type
	Node  *Node
	Index int // which of the node's results

	builder *Builder
}

// Node applies an Op to values.
type Node struct {
	ID      int // position in Graph.Nodes, which is in topological order
	Op      Op
	Inputs  []*Value
	Outputs []*Value
	// Scope names the layer that the node belongs to. Kernels never span scopes, so that where a model is cut into
	// stages changes no kernel.
	Scope string
}

func (v *Value) String() string {
	if s, ok := v.Node.Op.(Source); ok {
		return fmt.Sprintf("%s %q %v", s.Name(), s.Label(), v.Type)
	}
	return fmt.Sprintf("%s#%d %v", v.Node.Op.Name(), v.Node.ID, v.Type)
}

// Builder returns the builder that the value belongs to.
func (v *Value) Builder() *Builder { return v.builder }

// Output is a value that the host can read after a run.
type Output struct {
	Name  string
	Value *Value
}

// Assign stores a value in a variable, or in a section of one, when a run ends. Every read in the run sees the old
// contents.
type Assign struct {
	Variable *Value
	Value    *Value
}

// Graph is a finished computation.
type Graph struct {
	Nodes   []*Node
	Outputs []Output
	Assigns []Assign
}

// Sources returns the nodes of one source kind (input, variable or constant) in order.
func (g *Graph) Sources(kind string) []*Value {
	var vs []*Value
	for _, n := range g.Nodes {
		if _, ok := n.Op.(Source); ok && n.Op.Name() == kind {
			vs = append(vs, n.Outputs[0])
		}
	}
	return vs
}

// Error is a mistake in how a graph was built.
type Error struct {
	Op, Scope string
	Cause     error
}

func (e *Error) Error() string {
	if e.Scope == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Cause)
	}
	return fmt.Sprintf("%s: %s: %v", e.Scope, e.Op, e.Cause)
}

func (e *Error) Unwrap() error { return e.Cause }

// Builder collects nodes. Use it inside Build, which turns its panics of type *Error into errors.
type Builder struct {
	g     Graph
	scope string
	named map[string]*Value // by kind (a source's, "output" or "assign") and name

	sections map[string][]*Section // by variable, in order
}

// Build runs f on a fresh builder and returns the graph, or the first mistake that an op's shape rule found.
func Build(f func(b *Builder)) (g *Graph, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			g, err = nil, e
		}
	}()
	b := &Builder{named: map[string]*Value{}, sections: map[string][]*Section{}}
	f(b)
	return &b.g, nil
}

// Fail stops the build with an error.
func (b *Builder) Fail(op string, format string, args ...any) {
	panic(&Error{op, b.scope, fmt.Errorf(format, args...)})
}

// Scope makes f's nodes part of the named layer.
func (b *Builder) Scope(name string, f func()) {
	old := b.scope
	b.scope = name
	f()
	b.scope = old
}

// Apply adds a node and returns its results.
func (b *Builder) Apply(op Op, in ...*Value) []*Value {
	types := make([]Type, len(in))
	for i, v := range in {
		if v == nil || v.builder != b {
			panic(fmt.Sprintf("%s: input %d belongs to another graph", op.Name(), i))
		}
		types[i] = v.Type
	}
	outs, err := infer(op, types)
	if err != nil {
		panic(&Error{op.Name(), b.scope, err})
	}
	n := &Node{ID: len(b.g.Nodes), Op: op, Inputs: slices.Clone(in), Scope: b.scope}
	for i, t := range outs {
		n.Outputs = append(n.Outputs, &Value{Type: t, Node: n, Index: i, builder: b})
	}
	b.g.Nodes = append(b.g.Nodes, n)
	return n.Outputs
}

func infer(op Op, in []Type) ([]Type, error) {
	if err := refuseFloat16(op, "input", in, "cast it to f32 first"); err != nil {
		return nil, err
	}
	outs, err := op.Infer(in)
	if err != nil {
		return nil, err
	}
	if err := refuseFloat16(op, "result", outs, "cast one of f32"); err != nil {
		return nil, err
	}
	for _, t := range outs {
		if err := t.Shape.Check(); err != nil {
			return nil, err
		}
	}
	return outs, nil
}

// Apply1 applies an op of one result to at least one value.
func Apply1(op Op, in ...*Value) *Value { return in[0].builder.Apply(op, in...)[0] }

// Input is a tensor that the host uploads before a run. A name is one value: asking again returns it.
func (b *Builder) Input(name string, t Type) *Value { return b.source(&Input{Named{name, t}}) }

// Variable is a tensor that lives on the device between runs: weights, optimizer state, caches.
func (b *Builder) Variable(name string, t Type) *Value { return b.source(&Variable{Named{name, t}}) }

// Constant is a tensor of fixed numbers, uploaded once.
func (b *Builder) Constant(name string, t Type, data []float64) *Value {
	return b.source(&Constant{Named{name, t}, data})
}

func (b *Builder) source(s Source) *Value {
	key := s.Name() + " " + s.Label()
	if v, ok := b.named[key]; ok {
		if !v.Type.Equal(s.Declared()) {
			b.Fail(s.Name(), "%q is declared as %v and as %v", s.Label(), v.Type, s.Declared())
		}
		return v
	}
	b.checkUse(s)
	// A source belongs to no layer: its users may be anywhere.
	var v *Value
	b.Scope("", func() { v = b.Apply(s)[0] })
	b.named[key] = v
	return v
}

// Output makes a value readable after a run.
func (b *Builder) Output(name string, v *Value) {
	if _, ok := b.named["output "+name]; ok {
		b.Fail("output", "%q is named twice", name)
	}
	b.named["output "+name] = v
	b.g.Outputs = append(b.g.Outputs, Output{name, v})
}

// Assign stores v in a variable or section when a run ends.
func (b *Builder) Assign(variable, v *Value) {
	var s Source
	switch o := variable.Node.Op.(type) {
	case *Variable:
		s = o
	case *Section:
		s = o
	default:
		b.Fail("assign", "%v is not a variable", variable)
	}
	if !variable.Type.Equal(v.Type) {
		b.Fail("assign", "variable %q is %v, its new value is %v", s.Label(), variable.Type, v.Type)
	}
	if _, ok := b.named["assign "+s.Label()]; ok {
		b.Fail("assign", "variable %q is assigned twice", s.Label())
	}
	b.named["assign "+s.Label()] = v
	b.g.Assigns = append(b.g.Assigns, Assign{variable, v})
}

// Len is the number of nodes so far: autodiff walks them backwards.
func (b *Builder) Len() int { return len(b.g.Nodes) }

// Node returns the i-th node so far.
func (b *Builder) Node(i int) *Node { return b.g.Nodes[i] }
