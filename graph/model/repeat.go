package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
)

// repeatActivations returns the training graph g with activations of its own for the backward pass. Their gradients need
// what they are computed from, so it is kept anyway; computing them again takes less time and memory than to keep their
// results for each microbatch. The results have the same bits.
func repeatActivations(g *graph.Graph) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		r := repeater{b, map[*graph.Value]*graph.Value{}, map[*graph.Value]*graph.Value{}}
		for _, n := range g.Nodes {
			r.copyNode(n)
		}
		for _, o := range g.Outputs {
			b.Output(o.Name, r.values[o.Value])
		}
		for _, a := range g.Assigns {
			b.Assign(r.values[a.Variable], r.values[a.Value])
		}
	})
}

// repeater copies a graph. values are the copies of its values, repeated those that the backward pass reads instead.
type repeater struct {
	b                *graph.Builder
	values, repeated map[*graph.Value]*graph.Value
}

func (r repeater) copyNode(n *graph.Node) {
	pass := passOf(n)
	in := make([]*graph.Value, len(n.Inputs))
	for i, v := range n.Inputs {
		in[i] = r.values[v]
		if (pass == inputClass || pass == weightClass) && repeatable(v) {
			in[i] = r.repeat(v)
		}
	}
	r.b.Scope(n.Scope, func() {
		for i, v := range r.b.Apply(n.Op, in...) {
			r.values[n.Outputs[i]] = v
		}
	})
}

// repeatable reports whether v is the result of an activation in the forward pass, or its rounding.
func repeatable(v *graph.Value) bool {
	n := v.Node
	if _, cast := n.Op.(*op.CastOp); cast {
		return repeatable(n.Inputs[0])
	}
	return op.IsActivation(n.Op) && passOf(n) == forwardClass
}

func (r repeater) repeat(v *graph.Value) *graph.Value {
	if again := r.repeated[v]; again != nil {
		return again
	}
	x := v.Node.Inputs[0]
	in := r.values[x]
	if repeatable(x) {
		in = r.repeat(x)
	}
	r.b.Scope(v.Node.Scope+autodiff.Suffix, func() { r.repeated[v] = graph.Apply1(v.Node.Op, in) })
	return r.repeated[v]
}
