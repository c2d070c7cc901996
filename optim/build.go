package optim

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Kernels never span scopes. Each layer has a scope, so that the kernels of its parameters are the same whatever else
// the shard owns.
const (
	normsScope = "optim norms"
	gateScope  = "optim gate"
)

func layerScope(layer string) string { return "optim " + cmp.Or(layer, "parameters") }

// AddNormSquares adds the program NormSquares to a graph. It reads the gradients, and the loss if the shard has it, and
// assigns LocalVariable.
func (s *Shard) AddNormSquares(b *graph.Builder) {
	var squares []*graph.Value
	for _, param := range s.params {
		b.Scope(layerScope(param.Layer), func() {
			if param.BalancingBias {
				squares = append(squares, op.Full(b, graph.F32, 0, 1))
				return
			}
			squares = append(squares, op.Reshape(op.Sum(op.Square(wholeGradient(b, all(param), s.o.Scaling())), nil, false), 1))
		})
	}
	b.Scope(normsScope, func() {
		loss := op.Full(b, graph.F32, 0, 1)
		if s.loss {
			loss = sumLosses(b, s.o.cfg.Losses)
		}
		b.Assign(b.Variable(s.LocalVariable(), s.LocalType()), op.Concat(0, append(squares, loss)...))
	})
}

// sumLosses is the whole loss.
func sumLosses(b *graph.Builder, losses []string) (sum *graph.Value) {
	for _, name := range losses {
		l := b.Variable(name, graph.T(graph.F32, 1))
		if sum != nil {
			l = op.Add(sum, l)
		}
		sum = l
	}
	return sum
}

// wholeGradient is the sum of a section's gradients, divided by the loss scale if there is one.
func wholeGradient(b *graph.Builder, s section, scaling *Scaling) *graph.Value {
	var sum *graph.Value
	for _, name := range append(slices.Clone(s.param.Contributions), s.param.Gradient) {
		g := s.variable(b, name, s.param.Type)
		if sum != nil {
			g = op.Add(sum, g)
		}
		sum = g
	}
	if scaling != nil {
		sum = op.Mul(sum, scaling.read(b).ownInverse)
	}
	return sum
}

// AddUpdate adds the program Update to a graph. It reads all norm squares and the shard's parameters, gradients and
// state, decides, clips, and assigns the new weights (see Config.Delay) and the new state. If the update may not be
// applied, weights and state keep their bits.
func (s *Shard) AddUpdate(b *graph.Builder, variant int) {
	if variant < 0 || variant >= s.o.Variants() {
		panic(fmt.Sprintf("optim: variant %d of %d", variant, s.o.Variants()))
	}
	u := update{b: b, o: s.o, variant: variant}
	b.Scope(gateScope, u.gate)
	input := b.Input(HyperparametersInput, graph.T(graph.F32, len(s.o.Hyperparameters(0, false))))
	for _, layer := range layers(s.params) {
		b.Scope(layerScope(layer[0].Layer), func() {
			scalars := s.o.scalars(input)
			for i, g := range s.o.groups {
				for _, ss := range s.o.sectionSets(g.rule, g.of(layer)) {
					if s.o.roundsMoments() {
						scalars = u.keyed(input, ss)
					}
					u.apply(g.rule, ss, scalars[i])
				}
			}
			for _, p := range layer {
				if p.BalancingBias {
					u.balance(p)
				}
			}
		})
	}
}

// layers groups the parameters by layer.
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

// update is the program under construction.
type update struct {
	b        *graph.Builder
	o        *Optimizer
	variant  int
	norm, ok *graph.Value
	rounder  rounder // of the parameters that are being added
}

// gate computes the norm of all gradients in one sum of a fixed order, and decides whether the update may be applied.
func (u *update) gate() {
	squares := u.b.Variable(NormSquaresVariable, u.o.NormSquaresType())
	n := len(u.o.params)
	u.norm = op.Sqrt(op.Sum(op.Slice(squares, 0, 0, n), nil, true))
	loss := op.Slice(squares, 0, n, n+1)
	refused := op.Not(op.And(op.IsFinite(u.norm), op.IsFinite(loss)))
	var scale lossScale
	var overflowed *graph.Value
	if u.o.Scaled() {
		scale = u.o.Scaling().read(u.b)
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
	// Outputs are in memory: no kernel that reads them computes them again.
	u.b.Output(NormOutput, u.norm)
	u.b.Output(StatusOutput, refused)
	u.ok = op.Not(refused)
	if u.o.TracksInitialization() && u.variant == u.o.Variant(0, false) {
		u.b.Assign(u.b.Variable(InitializedVariable, graph.T(graph.U32, 1)), u.ok)
	}
	if u.o.Scaled() {
		u.rescale(scale, overflowed)
	}
}

// clipped is a gradient times min(1, clip/(norm + 1e-6)), as in PyTorch.
func (u *update) clipped(g *graph.Value) *graph.Value {
	if u.o.cfg.Clip <= 0 {
		return g
	}
	return op.Mul(g, op.Clamp(op.Scale(op.Reciprocal(op.Shift(u.norm, 1e-6)), u.o.cfg.Clip), 0, 1))
}

// apply updates sections of a layer's parameters that are under one rule.
func (u *update) apply(rule Rule, ss []section, h Scalars) {
	c := u.o.correction
	ts, corrected := make([]Tensor, len(ss)), make([][]*graph.Value, len(ss))
	for i, s := range ss {
		gradient := u.clipped(wholeGradient(u.b, s, u.o.Scaling()))
		ts[i] = Tensor{Param: s.param, Gradient: gradient, State: u.state(s, u.o.ruleState(rule, s.param)), Staleness: u.o.cfg.Staleness}
		ts[i].Type = gradient.Type
		corrected[i] = u.state(s, u.o.correctionState(s.param))
		ts[i].Gradient = c.Gradient(ts[i], corrected[i])
	}
	us := u.updates(rule, ts, h)
	for i, t := range ts {
		u.assign(t.State, us[i].State)
		step, state := c.Step(t, us[i], corrected[i])
		if u.o.roundsMoments() && c.Ahead() != "" {
			step, state = u.ahead(us[i], corrected[i], state), corrected[i] // as it is: the new one is assigned
		}
		x := ss[i].variable(u.b, t.Name, ss[i].param.Type)
		if t.Decay {
			// Not x·(1 − lr·λ): in f32 the factor would have few digits of lr·λ.
			step = op.Add(step, op.Mul(x, h.Get(weightDecay)))
		}
		u.move(ss[i], x, step)
		for j, kind := range c.State() {
			if kind == AppliedState {
				u.store(corrected[i][j], op.Where(u.ok, step, op.Scalar(u.b, graph.F32, 0)))
			} else {
				u.assign(corrected[i][j:j+1], state[j:j+1])
			}
		}
	}
}

// updates returns the rule's updates, with Update.Momentum set.
func (u *update) updates(rule Rule, ts []Tensor, h Scalars) (us []Update) {
	if v, ok := rule.(Varied); ok {
		us = v.UpdateVariant(u.variant, ts, h)
	} else {
		us = rule.Update(ts, h)
	}
	momenta := sync.OnceValue(func() []*graph.Value { return rule.(WithMomentum).Momentum(ts, us, h) })
	for i := range us {
		us[i].Momentum = func() *graph.Value { return us[i].U }
		if _, ok := rule.(WithMomentum); ok {
			us[i].Momentum = func() *graph.Value { return momenta()[i] }
		}
	}
	return us
}

// assign gives state its new values, unless the update may not be applied. State that stays the same costs nothing.
func (u *update) assign(state, values []*graph.Value) {
	for i, s := range state {
		if values[i] == s {
			continue
		}
		u.store(s, op.Where(u.ok, values[i], s))
	}
}

// move assigns the new weights: in place, or with a delay to the gradient's variable.
func (u *update) move(s section, x, step *graph.Value) {
	target := x
	if u.o.cfg.Delay > 0 {
		target = s.variable(u.b, s.param.Gradient, s.param.Type)
	}
	u.b.Assign(target, op.Where(u.ok, op.Sub(x, step), x))
}

// lerp is x + t·(y − x), as (1−t)·x + t·y.
func lerp(x, y *graph.Value, t float64) *graph.Value {
	return op.Add(op.Scale(x, 1-t), op.Scale(y, t))
}
