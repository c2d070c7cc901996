package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Adan is the config of Adan (Xie et al., arXiv:2208.06677, algorithm 1, without restart) with the bias corrections of
// the official code (sail-sg/Adan, adan.py; its betas are one minus the paper's). With d = g − g₋₁, which is 0 at the
// first step,
//
//	m ← lerp(m, g, 1−β₁);  w ← lerp(w, d, 1−β₂);  n ← lerp(n, (g + β₂·d)², 1−β₃);
//	u = lr·(m̂ + β₂·ŵ) / (√n̂ + ε)
//
// Weight decay is (1 − lr·λ)·x − u, as with all optimizers here and with no_prox in the official code. The paper's
// proximal form is (x − u) / (1 + lr·λ).
type Adan struct {
	LR    float64
	Betas [3]float64
	Eps   float64
}

// DefaultAdan has the defaults of Adan.
func DefaultAdan() *Adan { return &Adan{LR: 6e-3, Betas: [3]float64{0.98, 0.92, 0.99}, Eps: 1e-8} }

// Fields lists the hyperparameters.
func (c *Adan) Fields() []Field {
	return []Field{learningRateField(&c.LR),
		{Name: "betas", About: "decay rates of the gradient, its change and the second moment", Value: &c.Betas, Range: fractions},
		epsilonField(&c.Eps)}
}

// LearningRate is LR.
func (c *Adan) LearningRate() float64 { return c.LR }
func (*Adan) takes(Param) bool        { return true }
func (c *Adan) rule() Rule            { return &adan{c.Betas, c.Eps} }

type adan struct {
	betas [3]float64
	eps   float64
}

func (*adan) State(p Param) []graph.Named {
	return kinds(p, "exp_avg", "exp_avg_diff", "exp_avg_sq", "last_grad")
}

// Hyperparameters are the rate over the first moment's bias, β₂ times the rate over the second's, the reciprocal root
// of the third's, and 1 if there is a gradient before this one.
func (a *adan) Hyperparameters(step int, rate float64) Hyperparameters {
	return Hyperparameters{
		{"lr_over_bias1", rate / bias(a.betas[0], step)},
		{"beta2_lr_over_bias2", rate * a.betas[1] / bias(a.betas[1], step)},
		{"rsqrt_bias3", 1 / math.Sqrt(bias(a.betas[2], step))},
		{"has_last_grad", float64(min(step, 1))},
	}
}

func (a *adan) Update(ts []Tensor, h Scalars) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		g := t.Gradient
		d := op.Mul(op.Sub(g, t.State[3]), h.Get("has_last_grad"))
		m := lerp(t.State[0], g, 1-a.betas[0])
		w := lerp(t.State[1], d, 1-a.betas[1])
		n := lerp(t.State[2], op.Square(op.Add(g, op.Scale(d, a.betas[1]))), 1-a.betas[2])
		root := op.Shift(op.Mul(op.Sqrt(n), h.Get("rsqrt_bias3")), a.eps)
		us[i] = Update{
			U:     op.Div(op.Add(op.Mul(m, h.Get("lr_over_bias1")), op.Mul(w, h.Get("beta2_lr_over_bias2"))), root),
			State: []*graph.Value{m, w, n, g},
		}
	}
	return us
}
