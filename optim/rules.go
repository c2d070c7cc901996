package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	rules["sgd"] = registered{make: func(c Config) (Rule, error) { return &sgd{c.Momentum, c.Nesterov}, nil }}
	rules["adamw"] = registered{make: func(c Config) (Rule, error) { return &adamW{c.AdamW.Betas, c.AdamW.Eps}, nil }}
}

// sgd is torch.optim.SGD without dampening: b ← μ·b + g; u = lr·b, or lr·(g + μ·b) with Nesterov.
type sgd struct {
	momentum float64
	nesterov bool
}

func (*sgd) Name() string { return "sgd" }

func (s *sgd) State(p Param) []graph.Named {
	if s.momentum == 0 {
		return nil
	}
	return kinds(p, "momentum")
}

func (*sgd) Numbers(_ int, rate float64) []float64 { return []float64{rate} }

func (s *sgd) Update(ts []Tensor, numbers []*graph.Value) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		step := t.Gradient
		if s.momentum != 0 {
			buf := op.Add(op.Scale(t.State[0], s.momentum), t.Gradient)
			us[i].State = []*graph.Value{buf}
			step = buf
			if s.nesterov {
				step = op.Add(t.Gradient, op.Scale(buf, s.momentum))
			}
		}
		us[i].U = op.Mul(step, numbers[0])
	}
	return us
}

// Momentum is lr·b.
func (s *sgd) Momentum(_ []Tensor, us []Update, numbers []*graph.Value) []*graph.Value {
	ps := make([]*graph.Value, len(us))
	for i, u := range us {
		ps[i] = u.U
		if s.momentum != 0 {
			ps[i] = op.Mul(u.State[0], numbers[0])
		}
	}
	return ps
}

// adamW is torch.optim.AdamW: m and v are the running means of g and g²; u = lr·m̂ / (√v̂ + ε) with both bias-corrected.
type adamW struct {
	betas [2]float64
	eps   float64
}

func (*adamW) Name() string                { return "adamw" }
func (*adamW) State(p Param) []graph.Named { return kinds(p, "exp_avg", "exp_avg_sq") }

// Numbers are the rate over the first moment's bias, and the reciprocal root of the second's.
func (a *adamW) Numbers(step int, rate float64) []float64 {
	bias := func(beta float64) float64 { return 1 - math.Pow(beta, float64(step+1)) }
	return []float64{rate / bias(a.betas[0]), 1 / math.Sqrt(bias(a.betas[1]))}
}

func (a *adamW) Update(ts []Tensor, numbers []*graph.Value) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		m := lerp(t.State[0], t.Gradient, 1-a.betas[0])
		v := lerp(t.State[1], op.Square(t.Gradient), 1-a.betas[1])
		root := op.Shift(op.Mul(op.Sqrt(v), numbers[1]), a.eps)
		us[i] = Update{U: op.Div(op.Mul(m, numbers[0]), root), State: []*graph.Value{m, v}}
	}
	return us
}
