// Package eval computes graphs on the host with the ops' reference implementations, in float64. Its results define what
// kernels must compute.
//
// [Run] binds inputs and variables by name, evaluates the nodes in order and frees each value after its last reader.
// Then it returns the outputs and stores the assigned values in the variables.
package eval

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Option changes how Run computes.
type Option func(*run)

// Rounded rounds every result to its dtype, as a device would store it; 16-bit floats are always rounded.
func Rounded(r *run) { r.rounded = true }

type run struct {
	rounded bool
	values  map[*graph.Value]*graph.Tensor
	uses    map[*graph.Value]int // readers that are still to come
}

// Run computes the outputs of a graph from its inputs and variables, by name, then stores the assigned values in
// variables under new tensors. Inputs and variables that the graph does not have are ignored; one that is missing, of
// another type, or not of its dtype's integers, is an error, and then nothing is stored.
func Run(g *graph.Graph, inputs, variables map[string]*graph.Tensor, options ...Option) (map[string]*graph.Tensor, error) {
	r := &run{values: map[*graph.Value]*graph.Tensor{}, uses: map[*graph.Value]int{}}
	for _, o := range options {
		o(r)
	}
	if err := r.bind(g, "input", inputs); err != nil {
		return nil, err
	}
	if err := r.bind(g, "variable", variables); err != nil {
		return nil, err
	}
	if err := r.bind(g, "section", sections(g, variables)); err != nil {
		return nil, err
	}
	r.count(g)
	for _, n := range g.Nodes {
		r.step(n)
	}
	outputs := map[string]*graph.Tensor{}
	for _, o := range g.Outputs {
		outputs[o.Name] = clone(r.values[o.Value])
	}
	for _, a := range g.Assigns {
		store(variables, a.Variable.Node.Op.(graph.Source), r.values[a.Value])
	}
	return outputs, nil
}

// sections are the sections of variables that a graph reads, by name.
func sections(g *graph.Graph, variables map[string]*graph.Tensor) map[string]*graph.Tensor {
	all := map[string]*graph.Tensor{}
	for _, v := range g.Sources("section") {
		s := v.Node.Op.(*graph.Section)
		if whole := variables[s.Of.ID]; whole != nil && whole.Type.Equal(s.Of.Type) && len(whole.Data) == whole.Shape.Len() {
			all[s.ID] = &graph.Tensor{Type: s.Type, Data: whole.Data[s.Offset():][:s.Type.Shape.Len()]}
		}
	}
	return all
}

// store assigns a value to a variable or a section, under a new tensor.
func store(variables map[string]*graph.Tensor, to graph.Source, t *graph.Tensor) {
	t = clone(t)
	if s, ok := to.(*graph.Section); ok {
		whole := clone(variables[s.Of.ID])
		copy(whole.Data[s.Offset():], t.Data)
		t = whole
	}
	whole, _ := graph.Whole(to)
	variables[whole.ID] = t
}

func clone(t *graph.Tensor) *graph.Tensor {
	return &graph.Tensor{Type: t.Type, Data: slices.Clone(t.Data)}
}

func (r *run) bind(g *graph.Graph, kind string, given map[string]*graph.Tensor) error {
	for _, v := range g.Sources(kind) {
		name := v.Node.Op.(graph.Source).Label()
		t := given[name]
		if t == nil {
			return fmt.Errorf("%s %q is missing, expected %v", kind, name, v.Type)
		}
		if !t.Type.Equal(v.Type) {
			return fmt.Errorf("%s %q is %v, expected %v", kind, name, t.Type, v.Type)
		}
		if len(t.Data) != v.Shape.Len() {
			return fmt.Errorf("%s %q has %d values, expected %d", kind, name, len(t.Data), v.Shape.Len())
		}
		if err := checkIntegers(t); err != nil {
			return fmt.Errorf("%s %q: %w", kind, name, err)
		}
		if v.DType.Float16() {
			t = clone(t)
			round(t)
		}
		r.values[v] = t
	}
	return nil
}

// round rounds the values of a tensor to its dtype.
func round(t *graph.Tensor) {
	for i, x := range t.Data {
		t.Data[i] = t.DType.Round(x)
	}
}

func checkIntegers(t *graph.Tensor) error {
	low, high := 0.0, float64(math.MaxUint32)
	switch t.DType {
	case graph.I32:
		low, high = math.MinInt32, math.MaxInt32
	case graph.U32:
	default:
		return nil
	}
	for i, x := range t.Data {
		if !(x >= low && x <= high && x == math.Trunc(x)) {
			return fmt.Errorf("element %d is %v, expected a value of %v", i, x, t.DType)
		}
	}
	return nil
}

// count finds how often each value is read. Outputs and assigned values are never freed.
func (r *run) count(g *graph.Graph) {
	for _, n := range g.Nodes {
		for _, v := range n.Inputs {
			r.uses[v]++
		}
	}
	for _, o := range g.Outputs {
		r.uses[o.Value]++
	}
	for _, a := range g.Assigns {
		r.uses[a.Value]++
	}
}

// step computes one node and frees the inputs that have no reader left.
func (r *run) step(n *graph.Node) {
	if r.values[n.Outputs[0]] != nil {
		return // bound
	}
	in, out := make([]*graph.Tensor, len(n.Inputs)), make([]*graph.Tensor, len(n.Outputs))
	for i, v := range n.Inputs {
		in[i] = r.values[v]
	}
	for i, v := range n.Outputs {
		out[i] = graph.NewTensor(v.Type)
	}
	n.Op.Eval(in, out)
	for i, v := range n.Outputs {
		if r.rounded && v.DType.Float() || v.DType.Float16() {
			round(out[i])
		}
		if r.uses[v] > 0 {
			r.values[v] = out[i]
		}
	}
	for _, v := range n.Inputs {
		if r.uses[v]--; r.uses[v] == 0 {
			delete(r.values, v)
		}
	}
}
