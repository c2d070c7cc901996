// Package autodiff adds to a graph the nodes that compute gradients, in reverse mode.
//
// [Gradients] marks the nodes between the loss and the values of interest, walks them from the last to the first and
// calls each op's Grad with the gradients of its results. Gradients that flow into one value from several readers are
// added in the order of the walk.
package autodiff

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Suffix ends the scopes of the backward pass.
const Suffix = " backward"

// Gradients returns d(loss)/d(x) for each x of wrt, with the type of x, but in f32 for 16-bit floats; nil where the
// loss does not depend on x. The loss is any float value; seed is the gradient that flows into it, nil for ones. Nodes
// of the backward pass take the scope of the node whose gradient they compute with Suffix, so that no kernel spans the
// two passes.
func Gradients(loss *graph.Value, seed *graph.Value, wrt ...*graph.Value) []*graph.Value {
	return GradientsOfSum([]Seeded{{loss, seed}}, wrt...)
}

// Seeded is a loss with the gradient that flows into it, nil for ones.
type Seeded struct{ Loss, Seed *graph.Value }

// GradientsOfSum is Gradients of the sum of different losses.
func GradientsOfSum(losses []Seeded, wrt ...*graph.Value) []*graph.Value {
	b, last := losses[0].Loss.Builder(), losses[0].Loss.Node
	grads := map[*graph.Value]*graph.Value{}
	for _, l := range losses {
		grads[l.Loss] = l.seed()
		if l.Loss.Node.ID > last.ID {
			last = l.Loss.Node
		}
	}
	needed := ancestors(last, wrt)
	for id := last.ID; id >= 0; id-- {
		n := b.Node(id)
		if needed[n] {
			propagate(b, n, grads, needed)
		}
	}
	out := make([]*graph.Value, len(wrt))
	for i, x := range wrt {
		out[i] = grads[x]
	}
	return out
}

func (l Seeded) seed() *graph.Value {
	b, loss, seed := l.Loss.Builder(), l.Loss, l.Seed
	if !loss.DType.Float() {
		b.Fail("gradient", "%v has no gradient", loss)
	}
	if seed == nil {
		seed = op.Broadcast(op.Scalar(b, loss.Type.Gradient().DType, 1), loss.Shape...)
	}
	if want := loss.Type.Gradient(); !seed.Type.Equal(want) {
		b.Fail("gradient", "of %v: the gradient that flows into it is %v, expected %v", loss, seed.Type, want)
	}
	return seed
}

// ancestors marks the nodes on a path from wrt to last.
func ancestors(last *graph.Node, wrt []*graph.Value) map[*graph.Node]bool {
	b := last.Outputs[0].Builder()
	needed := map[*graph.Node]bool{}
	for _, x := range wrt {
		needed[x.Node] = true
	}
	for id := 0; id <= last.ID; id++ {
		n := b.Node(id)
		for _, in := range n.Inputs {
			if needed[in.Node] && in.DType.Float() {
				needed[n] = true
			}
		}
	}
	return needed
}

func propagate(b *graph.Builder, n *graph.Node, grads map[*graph.Value]*graph.Value, needed map[*graph.Node]bool) {
	douts := make([]*graph.Value, len(n.Outputs))
	flows := false
	for i, o := range n.Outputs {
		douts[i] = grads[o]
		flows = flows || douts[i] != nil
	}
	if !flows || len(n.Inputs) == 0 {
		return
	}
	b.Scope(n.Scope+Suffix, func() {
		for i, d := range n.Op.Grad(n, douts) {
			in := n.Inputs[i]
			if d == nil || !needed[in.Node] {
				continue
			}
			if !d.Type.Equal(in.Type.Gradient()) {
				panic("autodiff: " + n.Op.Name() + " returned a gradient of " + d.Type.String() + " for an input of " + in.Type.String())
			}
			if old := grads[in]; old != nil {
				d = op.Add(old, d)
			}
			grads[in] = d
		}
	})
}
