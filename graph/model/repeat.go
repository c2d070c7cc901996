package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
)

// repeatActivations returns the training graph g with activations and elementwise products of its own for the backward
// pass, such as silu(gate)·up and the results of norms. Their inputs are kept anyway, since their gradients need them.
// Computing the results again takes less memory than keeping them for each microbatch, and hardly more time. The
// results have the same bits. rounded selects nodes that are repeated too: a program that recomputes the forward pass
// would keep the rounded weights of all its layers until their gradients.
func repeatActivations(g *graph.Graph, rounded func(*graph.Node) bool) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		r := repeater{b, rounded, map[*graph.Value]*graph.Value{}, map[*graph.Value]*graph.Value{}}
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

// repeater copies a graph. values are the copies of its values, and repeated the copies that the backward pass reads
// instead.
type repeater struct {
	b                *graph.Builder
	rounded          func(*graph.Node) bool
	values, repeated map[*graph.Value]*graph.Value
}

func (r repeater) copyNode(n *graph.Node) {
	pass := passOf(n)
	in := r.inputs(n, pass == inputClass || pass == weightClass)
	r.b.Scope(n.Scope, func() {
		for i, v := range r.b.Apply(n.Op, in...) {
			r.values[n.Outputs[i]] = v
		}
	})
}

// inputs are the copies of n's inputs, repeated where that is asked for and possible.
func (r repeater) inputs(n *graph.Node, repeated bool) []*graph.Value {
	in := make([]*graph.Value, len(n.Inputs))
	for i, v := range n.Inputs {
		in[i] = r.values[v]
		if repeated && (repeatable(v) || r.rounded(v.Node)) {
			in[i] = r.repeat(v)
		}
	}
	return in
}

func (r repeater) repeat(v *graph.Value) *graph.Value {
	if again := r.repeated[v]; again != nil {
		return again
	}
	in := r.inputs(v.Node, true)
	r.b.Scope(v.Node.Scope+autodiff.Suffix, func() { r.repeated[v] = graph.Apply1(v.Node.Op, in...) })
	return r.repeated[v]
}

// repeatable reports whether v is computed again: the result of an activation or of a product in the forward pass, its
// rounding, rows or a view of it.
func repeatable(v *graph.Value) bool {
	n := v.Node
	if passOf(n) != forwardClass {
		return false
	}
	if op.IsActivation(n.Op) || op.IsProduct(n.Op) {
		return true
	}
	_, cast := n.Op.(*op.CastOp)
	_, rows := n.Op.(*op.TakeOp) // for the experts, of the norm's result
	return (cast || rows || isView(n)) && repeatable(n.Inputs[0])
}

func isView(n *graph.Node) bool {
	k, ok := n.Op.Kernel(n).(graph.Elementwise)
	return ok && k.View && len(n.Inputs) == 1
}
