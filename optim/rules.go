package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// sgd is torch.optim.SGD without dampening: b ← μ·b + g; u = lr·b, or lr·(g + μ·b) with Nesterov.
type sgd struct {
	momentum float64
	nesterov bool
}

func (*sgd) Name() string { return "sgd" }

func (s *sgd) State() []string {
	if s.momentum == 0 {
		return nil
	}
	return []string{"momentum"}
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

// adamW is torch.optim.AdamW: m and v are the running means of g and g²; u = lr·m̂ / (√v̂ + ε) with both bias-corrected.
type adamW struct {
	betas [2]float64
	eps   float64
}

func (*adamW) Name() string    { return "adamw" }
func (*adamW) State() []string { return []string{"exp_avg", "exp_avg_sq"} }

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
		us[i] = Update{op.Div(op.Mul(m, numbers[0]), root), []*graph.Value{m, v}}
	}
	return us
}
