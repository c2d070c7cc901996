package optim

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Kernels never span scopes. Each layer has one of its own, and what is common to all has others, so that the kernels of a
// layer's parameters are the same whatever else the part owns.
const (
	votesScope = "optim votes"
	gateScope  = "optim gate"
)

func layerScope(layer string) string { return "optim " + cmp.Or(layer, "parameters") }

// AddVotes adds the program Votes to a graph: it reads the gradients (and the loss, which is 0 where the part has none) and
// assigns the variable OwnName.
func (p *Part) AddVotes(b *graph.Builder) {
	var votes []*graph.Value
	for _, param := range p.params {
		b.Scope(layerScope(param.Layer), func() {
			votes = append(votes, op.Reshape(op.Sum(op.Square(p.o.gradient(b, param)), nil, false), 1))
		})
	}
	b.Scope(votesScope, func() {
		loss := op.Full(b, graph.F32, 0, 1)
		if p.loss {
			loss = p.o.loss(b)
		}
		b.Assign(b.Variable(p.OwnName(), p.OwnType()), op.Concat(0, append(votes, loss)...))
	})
}

// loss is the whole loss.
func (o *Optimizer) loss(b *graph.Builder) (sum *graph.Value) {
	for _, name := range o.Losses() {
		l := b.Variable(name, graph.T(graph.F32, 1))
		if sum != nil {
			l = op.Add(sum, l)
		}
		sum = l
	}
	return sum
}

// gradient is the whole gradient of a parameter, that of the loss itself.
func (o *Optimizer) gradient(b *graph.Builder, p Param) *graph.Value {
	var sum *graph.Value
	for _, name := range append(slices.Clone(p.Contributions), p.Gradient) {
		g := b.Variable(name, p.Type)
		if sum != nil {
			g = op.Add(sum, g)
		}
		sum = g
	}
	if o.Scaled() {
		sum = op.Mul(sum, o.lossScale(b).ownInverse)
	}
	return sum
}

// AddUpdate adds the program Update to a graph: it reads all votes, the part's parameters, gradients and state, decides,
// clips, and assigns the new weights (see Config.Delay) and the new state. When the update may not be applied, weights and
// state keep their bits.
func (p *Part) AddUpdate(b *graph.Builder, variant int) {
	if variant < 0 || variant >= p.o.Variants() {
		panic(fmt.Sprintf("optim: variant %d of %d", variant, p.o.Variants()))
	}
	u := update{b: b, o: p.o, variant: variant}
	b.Scope(gateScope, u.gate)
	hyper := b.Input(HyperInput, graph.T(graph.F32, len(p.o.hyper(0, false))))
	for _, layer := range layers(p.params) {
		b.Scope(layerScope(layer[0].Layer), func() {
			numbers := unstack(hyper)
			for _, g := range p.o.groups {
				n := len(g.rule.Numbers(0, 0))
				if params := g.of(layer); len(params) > 0 {
					u.apply(g.rule, params, numbers[0], numbers[1:1+n])
				}
				numbers = numbers[1+n:]
			}
		})
	}
}

// layers gathers the parameters of each layer.
func layers(params []Param) [][]Param {
	var all [][]Param
	at := map[string]int{}
	for _, p := range params {
		i, seen := at[p.Layer]
		if !seen {
			i = len(all)
			all, at[p.Layer] = append(all, nil), i
		}
		all[i] = append(all[i], p)
	}
	return all
}

// unstack is the elements of a vector, as [1] each.
func unstack(v *graph.Value) []*graph.Value {
	xs := make([]*graph.Value, v.Shape[0])
	for i := range xs {
		xs[i] = op.Slice(v, 0, i, i+1)
	}
	return xs
}

// update is the program under construction.
type update struct {
	b        *graph.Builder
	o        *Optimizer
	variant  int
	norm, ok *graph.Value
}

// gate computes the norm of all gradients in one sum of a fixed order, and tells whether the update may be applied.
func (u *update) gate() {
	votes := u.b.Variable(VotesVariable, u.o.VotesType())
	n := len(u.o.params)
	u.norm = op.Sqrt(op.Sum(op.Slice(votes, 0, 0, n), nil, true))
	loss := op.Slice(votes, 0, n, n+1)
	refused := op.Not(op.And(op.IsFinite(u.norm), op.IsFinite(loss)))
	var scale lossScale
	var overflowed *graph.Value
	if u.o.Scaled() {
		scale = u.o.lossScale(u.b)
		overflowed = scale.overflowed(u.norm, loss)
		refused = op.And(refused, op.Not(overflowed))
	}
	if !u.o.cfg.SkipNonfinite {
		halted := u.b.Variable(HaltedVariable, graph.T(graph.U32, 1))
		refused = op.Or(refused, halted)
		u.b.Assign(halted, refused)
	}
	if u.o.Scaled() {
		overflowed = op.And(overflowed, op.Not(refused))
		refused = op.Where(overflowed, op.Scalar(u.b, graph.U32, Overflowed), refused)
		u.b.Output(ScaleOutput, scale.own)
	}
	// As outputs they are in memory, and no reader computes them again.
	u.b.Output(NormOutput, u.norm)
	u.b.Output(RefusedOutput, refused)
	u.ok = op.Not(refused)
	if u.o.Begins() && u.variant == u.o.Variant(0, false) {
		u.b.Assign(u.b.Variable(BegunVariable, graph.T(graph.U32, 1)), u.ok)
	}
	if u.o.Scaled() {
		u.rescale(scale, overflowed)
	}
}

// clipped is what the norm leaves of a gradient. As PyTorch: times min(1, clip/(norm + 1e-6)).
func (u *update) clipped(g *graph.Value) *graph.Value {
	if u.o.cfg.Clip <= 0 {
		return g
	}
	return op.Mul(g, op.Clamp(op.Scale(op.Reciprocal(op.Shift(u.norm, 1e-6)), u.o.cfg.Clip), 0, 1))
}

// state is the variables of some kinds of state of a parameter.
func (u *update) state(p Param, declared []graph.Named) (vs []*graph.Value) {
	for _, k := range declared {
		vs = append(vs, u.b.Variable(stateName(k.ID, p.Name), k.Type))
	}
	return vs
}

// apply updates a layer's parameters that are under one rule.
func (u *update) apply(rule Rule, params []Param, decay *graph.Value, numbers []*graph.Value) {
	c := u.o.correction
	ts, corrected := make([]Tensor, len(params)), make([][]*graph.Value, len(params))
	for i, p := range params {
		ts[i] = Tensor{Param: p, Gradient: u.clipped(u.o.gradient(u.b, p)), State: u.state(p, rule.State(p))}
		corrected[i] = u.state(p, kinds(p, c.State()...))
		ts[i].Gradient = c.Gradient(ts[i], corrected[i])
	}
	us := u.updates(rule, ts, numbers)
	for i, t := range ts {
		u.assign(t.State, us[i].State)
		step, state := c.Step(t, us[i], corrected[i])
		x := u.b.Variable(t.Name, t.Type)
		if t.Decay {
			// Not x·(1 − lr·λ): in f32 the factor would have few digits of lr·λ.
			step = op.Add(step, op.Mul(x, decay))
		}
		u.move(t.Param, x, step)
		for j, kind := range c.State() {
			if kind == AppliedState {
				u.b.Assign(corrected[i][j], op.Where(u.ok, step, op.Scalar(u.b, graph.F32, 0)))
			} else {
				u.assign(corrected[i][j:j+1], state[j:j+1])
			}
		}
	}
}

// updates asks the rule for its updates, and readies it to be asked for those of its momentum.
func (u *update) updates(rule Rule, ts []Tensor, numbers []*graph.Value) (us []Update) {
	if v, ok := rule.(Varied); ok {
		us = v.UpdateVariant(u.variant, ts, numbers)
	} else {
		us = rule.Update(ts, numbers)
	}
	momenta := sync.OnceValue(func() []*graph.Value { return rule.(WithMomentum).Momentum(ts, us, numbers) })
	for i := range us {
		us[i].Momentum = func() *graph.Value { return us[i].U }
		if _, ok := rule.(WithMomentum); ok {
			us[i].Momentum = func() *graph.Value { return momenta()[i] }
		}
	}
	return us
}

// assign gives state its new values, unless the update may not be applied. State that stays costs nothing.
func (u *update) assign(state, values []*graph.Value) {
	for i, s := range state {
		if values[i] == s {
			continue
		}
		u.b.Assign(s, op.Where(u.ok, values[i], s))
	}
}

// move assigns the new weights: in place, or with delay over the gradient.
func (u *update) move(p Param, x, step *graph.Value) {
	target := x
	if u.o.cfg.Delay > 0 {
		target = u.b.Variable(p.Gradient, p.Type)
	}
	u.b.Assign(target, op.Where(u.ok, op.Sub(x, step), x))
}

// lerp is x + t·(y − x), as (1−t)·x + t·y.
func lerp(x, y *graph.Value, t float64) *graph.Value {
	return op.Add(op.Scale(x, 1-t), op.Scale(y, t))
}
