package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// AdamW is the config of torch.optim.AdamW. With m and v for the running means of g and g², u = lr·m̂ / (√v̂ + ε),
// where the hats mark the correction of the bias that comes from starting at zero: m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 −
// β₂ᵗ).
type AdamW struct {
	LR    float64
	Betas [2]float64
	Eps   float64
}

// DefaultAdamW has the defaults of AdamW.
func DefaultAdamW() *AdamW { return &AdamW{LR: 3e-3, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8} }

// DefaultRest has the defaults of AdamW for the parameters that another optimizer does not take: embeddings, head and
// norms.
func DefaultRest() *AdamW {
	c := DefaultAdamW()
	c.LR = 6e-3
	return c
}

// Fields lists the hyperparameters.
func (c *AdamW) Fields() []Field {
	return []Field{learningRateField(&c.LR),
		{Name: "betas", About: "decay rates of the first and the second moment", Value: &c.Betas, Range: fractions}, epsilonField(&c.Eps)}
}

// LearningRate is LR.
func (c *AdamW) LearningRate() float64 { return c.LR }
func (*AdamW) takes(Param) bool        { return true }
func (c *AdamW) rule() Rule            { return &adamW{c.Betas, c.Eps} }

type adamW struct {
	betas [2]float64
	eps   float64
}

func (*adamW) State(p Param) []graph.Named { return kinds(p, "exp_avg", "exp_avg_sq") }

// Hyperparameters are the rate over the first moment's bias, and the reciprocal root of the second moment's bias.
func (a *adamW) Hyperparameters(step int, rate float64) Hyperparameters {
	return Hyperparameters{{"lr_over_bias1", rate / bias(a.betas[0], step)}, {"rsqrt_bias2", 1 / math.Sqrt(bias(a.betas[1], step))}}
}

// bias is the weight of the gradients in a running mean that starts at zero, after the update of a step.
func bias(beta float64, step int) float64 { return 1 - math.Pow(beta, float64(step+1)) }

func (a *adamW) Update(ts []Tensor, h Scalars) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		m := lerp(t.State[0], t.Gradient, 1-a.betas[0])
		v := lerp(t.State[1], op.Square(t.Gradient), 1-a.betas[1])
		root := op.Shift(op.Mul(op.Sqrt(v), h.Get("rsqrt_bias2")), a.eps)
		us[i] = Update{U: op.Div(op.Mul(m, h.Get("lr_over_bias1")), root), State: []*graph.Value{m, v}}
	}
	return us
}
