package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	rules["adan"] = registered{make: func(c Config) (Rule, error) {
		betas, err := c.betas(3)
		if err != nil {
			return nil, err
		}
		return &adan{[3]float64(betas), c.Eps}, nil
	}}
}

// adan is Adan (Xie et al., arXiv:2208.06677, algorithm 1, without restart) with the bias corrections of the official code
// (sail-sg/Adan, adan.py; its betas are one minus the paper's): with d = g − g₋₁, 0 at the first step,
// m ← lerp(m, g, 1−β₁), w ← lerp(w, d, 1−β₂), n ← lerp(n, (g + β₂·d)², 1−β₃); u = lr·(m̂ + β₂·ŵ) / (√n̂ + ε).
// Weight decay is as everywhere, (1 − lr·λ)·x − u, which is the official code's no_prox; the paper's proximal form is
// (x − u) / (1 + lr·λ).
type adan struct {
	betas [3]float64
	eps   float64
}

func (*adan) Name() string { return "adan" }

func (*adan) State(p Param) []graph.Named {
	return kinds(p, "exp_avg", "exp_avg_diff", "exp_avg_sq", "last_grad")
}

// Numbers are the rate over the first moment's bias, β₂ times the rate over the second's, the reciprocal root of the third's,
// and whether there is a gradient before this one.
func (a *adan) Numbers(step int, rate float64) []float64 {
	bias := func(beta float64) float64 { return 1 - math.Pow(beta, float64(step+1)) }
	return []float64{rate / bias(a.betas[0]), rate * a.betas[1] / bias(a.betas[1]), 1 / math.Sqrt(bias(a.betas[2])), float64(min(step, 1))}
}

func (a *adan) Update(ts []Tensor, numbers []*graph.Value) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		g := t.Gradient
		d := op.Mul(op.Sub(g, t.State[3]), numbers[3])
		m := lerp(t.State[0], g, 1-a.betas[0])
		w := lerp(t.State[1], d, 1-a.betas[1])
		n := lerp(t.State[2], op.Square(op.Add(g, op.Scale(d, a.betas[1]))), 1-a.betas[2])
		root := op.Shift(op.Mul(op.Sqrt(n), numbers[2]), a.eps)
		us[i] = Update{
			U:     op.Div(op.Add(op.Mul(m, numbers[0]), op.Mul(w, numbers[1])), root),
			State: []*graph.Value{m, w, n, g},
		}
	}
	return us
}
