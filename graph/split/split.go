// Package split cuts a graph into programs that run one after the other, such as the forward pass, the gradients of
// activations and the gradients of weights.
//
// The caller gives each node a class and lists the phases, each with the classes that it computes. [Run] finds the
// nodes that each phase needs. A value that an earlier phase computes and a later one needs becomes a variable, the
// stash, unless the later phase repeats the computation. Then Run builds the graph of each phase.
package split

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Phase is the specification of one program.
type Phase struct {
	// Own are the classes whose outputs and assignments the phase computes; no two phases own a class.
	Own []int
	// Recompute are classes of earlier phases. The phase computes their values again, as far as it needs them, without
	// their outputs and assignments.
	Recompute []int
	// Again selects nodes of earlier phases that the phase repeats as it repeats views: nodes cheaper to compute than
	// to keep. It may be nil.
	Again func(*graph.Node) bool
	// Stash is the prefix of the variables that keep values for later phases: PREFIX0, PREFIX1, …
	Stash string
}

// Program is the graph of a phase, and the variables that it assigns for later phases.
type Program struct {
	Graph *graph.Graph
	Stash []graph.Named
}

// Run cuts g, an expanded graph (graph.Expand), by the class of its nodes into phases that run in the given order. A
// phase reads a value of a class that it neither owns nor recomputes from a variable. The latest earlier phase that
// computes the class assigns the variable. Sources, generators and views are repeated wherever they are read, so only
// values with memory of their own are kept, each in one variable. No value is copied, except one that g assigns to a
// variable as well.
//
// Run returns an error if a phase needs a class that no earlier phase computes, or reads a variable that an earlier
// phase has assigned.
func Run(g *graph.Graph, class func(*graph.Node) int, phases []Phase) ([]Program, error) {
	c := &cutter{g: g, class: class, owner: map[int]*phase{}}
	if err := c.setUp(phases); err != nil {
		return nil, err
	}
	if err := c.mark(); err != nil {
		return nil, err
	}
	if err := c.nameStashes(); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	programs := make([]Program, len(c.phases))
	for i, p := range c.phases {
		var err error
		if programs[i].Graph, err = c.emit(p); err != nil {
			return nil, err
		}
		for _, v := range p.stashed {
			programs[i].Stash = append(programs[i].Stash, graph.Named{ID: p.names[v], Type: v.Type})
		}
	}
	return programs, nil
}

type cutter struct {
	g      *graph.Graph
	class  func(*graph.Node) int
	owner  map[int]*phase // by class
	phases []*phase
}

// phase is a Phase with the nodes and values found so far.
type phase struct {
	Phase
	index     int
	computes  map[int]bool            // classes
	nodes     map[*graph.Node]bool    // that it has
	variables map[*graph.Node]bool    // that it reads
	reads     map[*graph.Value]*phase // values that it reads from the stash of an earlier phase
	names     map[*graph.Value]string // of the variables that it keeps values in
	stashed   []*graph.Value          // those values, in order
}

func (c *cutter) setUp(phases []Phase) error {
	for i, given := range phases {
		p := &phase{Phase: given, index: i, computes: map[int]bool{}, nodes: map[*graph.Node]bool{},
			variables: map[*graph.Node]bool{}, reads: map[*graph.Value]*phase{}, names: map[*graph.Value]string{}}
		for _, class := range given.Own {
			if c.owner[class] != nil {
				return fmt.Errorf("split: class %d is owned by phases %d and %d", class, c.owner[class].index, i)
			}
			c.owner[class] = p
			p.computes[class] = true
		}
		for _, class := range given.Recompute {
			p.computes[class] = true
		}
		c.phases = append(c.phases, p)
	}
	return nil
}

// mark finds the values that each phase computes, and the values that it reads from other phases.
func (c *cutter) mark() error {
	for _, o := range c.g.Outputs {
		if err := c.root("output "+o.Name, o.Value); err != nil {
			return err
		}
	}
	for _, a := range c.g.Assigns {
		if err := c.root(a.Variable.String(), a.Value); err != nil {
			return err
		}
		c.owner[c.class(a.Value.Node)].nodes[a.Variable.Node] = true
	}
	return nil
}

func (c *cutter) root(what string, v *graph.Value) error {
	p := c.owner[c.class(v.Node)]
	if p == nil {
		return fmt.Errorf("split: %s is of class %d, which no phase owns", what, c.class(v.Node))
	}
	return c.need(p, v)
}

// need adds the nodes that compute v to p, or makes an earlier phase keep v.
func (c *cutter) need(p *phase, v *graph.Value) error {
	n := v.Node
	if _, ok := n.Op.(*graph.Variable); ok {
		p.variables[n] = true
	}
	switch {
	case p.reads[v] != nil || p.nodes[n] && len(n.Inputs) > 0:
		return nil
	case repeated(n) || p.Again != nil && p.Again(n) || p.computes[c.class(n)]:
		p.nodes[n] = true
		for _, in := range n.Inputs {
			if err := c.need(p, in); err != nil {
				return err
			}
		}
		return nil
	}
	for _, from := range slices.Backward(c.phases[:p.index]) {
		if from.computes[c.class(n)] {
			p.reads[v], from.names[v] = from, ""
			return c.need(from, v)
		}
	}
	return fmt.Errorf("split: phase %d needs %v of class %d, which no earlier phase computes", p.index, v, c.class(n))
}

// repeated reports whether a node is computed wherever it is read: it has no memory of its own to keep.
func repeated(n *graph.Node) bool {
	switch k := n.Op.Kernel(n).(type) {
	case graph.Memory:
		return true
	case graph.Elementwise:
		return k.View || len(n.Inputs) == 0
	}
	return false
}

// nameStashes numbers the stash of each phase in the order of the nodes.
func (c *cutter) nameStashes() error {
	taken := map[string]bool{}
	for _, v := range c.g.Sources("variable") {
		taken[v.Node.Op.(graph.Source).Label()] = true
	}
	for _, p := range c.phases {
		for _, n := range c.g.Nodes {
			for _, v := range n.Outputs {
				if _, ok := p.names[v]; !ok {
					continue
				}
				name := fmt.Sprintf("%s%d", p.Stash, len(p.stashed))
				if taken[name] {
					return fmt.Errorf("split: the stash of phase %d needs the name %q, which is a variable's", p.index, name)
				}
				taken[name], p.names[v] = true, name
				p.stashed = append(p.stashed, v)
			}
		}
	}
	return nil
}

// check refuses cuts that would change the meaning of the graph, in which every read sees a variable's old contents.
func (c *cutter) check() error {
	for _, a := range c.g.Assigns {
		p := c.owner[c.class(a.Value.Node)]
		for _, later := range c.phases[p.index+1:] {
			if later.variables[a.Variable.Node] {
				return fmt.Errorf("split: phase %d reads %v, which phase %d has assigned", later.index, a.Variable, p.index)
			}
		}
	}
	return nil
}

func (c *cutter) emit(p *phase) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		values := map[*graph.Value]*graph.Value{}
		for _, n := range c.g.Nodes {
			if p.nodes[n] {
				b.Scope(n.Scope, func() { copyNode(b, n, values) })
				continue
			}
			for _, v := range n.Outputs {
				if from := p.reads[v]; from != nil {
					values[v] = b.Variable(from.names[v], v.Type)
				}
			}
		}
		for _, o := range c.g.Outputs {
			if c.owner[c.class(o.Value.Node)] == p {
				b.Output(o.Name, values[o.Value])
			}
		}
		for _, a := range c.g.Assigns {
			if c.owner[c.class(a.Value.Node)] == p {
				b.Assign(values[a.Variable], values[a.Value])
			}
		}
		for _, v := range p.stashed {
			b.Assign(b.Variable(p.names[v], v.Type), values[v])
		}
	})
}

func copyNode(b *graph.Builder, n *graph.Node, values map[*graph.Value]*graph.Value) {
	in := make([]*graph.Value, len(n.Inputs))
	for i, v := range n.Inputs {
		in[i] = values[v]
	}
	for i, v := range b.Apply(n.Op, in...) {
		values[n.Outputs[i]] = v
	}
}
