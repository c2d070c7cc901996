package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Graph is the update as a graph of its own.
func (o *Optimizer) Graph() (*graph.Graph, error) { return graph.Build(o.Build) }

// Build adds the update: it reads parameters, gradients and state, computes the gradient's global norm, clips, and
// assigns the new parameters x ← (1 − lr·λ)·x − u and the new state. When the norm or the loss is not finite, or the
// update was ever refused before, every parameter and state keeps its bits and "optim/halted" is set.
func (o *Optimizer) Build(b *graph.Builder) {
	b.Scope("optim", func() {
		gradients := map[string]*graph.Value{}
		for _, p := range o.params {
			gradients[p.Name] = b.Variable(p.Gradient, p.Type)
		}
		norm := o.norm(b, gradients)
		ok := o.gate(b, norm)
		if o.cfg.Clip > 0 {
			// As PyTorch: min(1, clip/(norm + 1e-6)).
			factor := op.Clamp(op.Scale(op.Reciprocal(op.Shift(norm, 1e-6)), o.cfg.Clip), 0, 1)
			for _, p := range o.params {
				gradients[p.Name] = op.Mul(gradients[p.Name], factor)
			}
		}
		numbers := unstack(b.Input(HyperInput, graph.T(graph.F32, len(o.hyper(0)))))
		for _, g := range o.groups {
			n := len(g.rule.Numbers(0, 0))
			g.build(b, gradients, ok, numbers[0], numbers[1:1+n])
			numbers = numbers[1+n:]
		}
	})
}

// unstack is the elements of a vector, as [1] each.
func unstack(v *graph.Value) []*graph.Value {
	xs := make([]*graph.Value, v.Shape[0])
	for i := range xs {
		xs[i] = op.Slice(v, 0, i, i+1)
	}
	return xs
}

// norm is the norm of all gradients: sums of squares by parameter, then their sum, both in a fixed order.
func (o *Optimizer) norm(b *graph.Builder, gradients map[string]*graph.Value) *graph.Value {
	var squares []*graph.Value
	for _, p := range o.params {
		squares = append(squares, op.Reshape(op.Sum(op.Square(gradients[p.Name]), nil, false), 1))
	}
	norm := op.Sqrt(op.Sum(op.Concat(0, squares...), nil, true))
	// As an output it is in memory, and no reader computes it again.
	b.Output(NormOutput, norm)
	return norm
}

// gate tells whether the update may be applied, and remembers when it may not.
func (o *Optimizer) gate(b *graph.Builder, norm *graph.Value) *graph.Value {
	halted := b.Variable(HaltedVariable, graph.T(graph.U32, 1))
	ok := op.And(op.IsFinite(norm), op.Not(halted))
	if o.cfg.Loss != "" {
		ok = op.And(ok, op.IsFinite(b.Variable(o.cfg.Loss, graph.T(graph.F32, 1))))
	}
	b.Output(OKOutput, ok)
	b.Assign(halted, op.Not(ok))
	return ok
}

// build applies the updates of one rule's parameters.
func (g group) build(b *graph.Builder, gradients map[string]*graph.Value, ok, decay *graph.Value, numbers []*graph.Value) {
	ts := make([]Tensor, len(g.params))
	for i, p := range g.params {
		ts[i] = Tensor{Param: p, Gradient: gradients[p.Name]}
		for _, kind := range g.rule.State() {
			ts[i].State = append(ts[i].State, b.Variable(stateName(kind, p.Name), p.Type))
		}
	}
	for i, u := range g.rule.Update(ts, numbers) {
		t := ts[i]
		for j, s := range t.State {
			b.Assign(s, op.Where(ok, u.State[j], s))
		}
		x := b.Variable(t.Name, t.Type)
		step := u.U
		if t.Decay {
			// Not x·(1 − lr·λ): in f32 the factor would have few digits of lr·λ.
			step = op.Add(step, op.Mul(x, decay))
		}
		b.Assign(x, op.Where(ok, op.Sub(x, step), x))
	}
}

// lerp is x + t·(y − x), as (1−t)·x + t·y.
func lerp(x, y *graph.Value, t float64) *graph.Value {
	return op.Add(op.Scale(x, 1-t), op.Scale(y, t))
}
