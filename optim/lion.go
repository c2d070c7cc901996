package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Lion is the config of Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675, algorithm
// 2; google/automl, lion_pytorch.py): u = lr·sign(β₁·m + (1−β₁)·g); m ← β₂·m + (1−β₂)·g.
type Lion struct {
	LR    float64
	Betas [2]float64
}

// DefaultLion has the defaults of Lion.
func DefaultLion() *Lion { return &Lion{LR: 1e-3, Betas: [2]float64{0.9, 0.99}} }

// Fields lists the hyperparameters.
func (c *Lion) Fields() []Field {
	return []Field{learningRateField(&c.LR),
		{Name: "betas", About: "weights of the momentum so far, in the update and in the momentum", Value: &c.Betas, Range: fractions}}
}

// LearningRate is LR.
func (c *Lion) LearningRate() float64 { return c.LR }
func (*Lion) takes(Param) bool        { return true }
func (c *Lion) rule() Rule            { return &lion{c.Betas[0], c.Betas[1]} }

type lion struct{ beta1, beta2 float64 }

func (*lion) State(p Param) []graph.Named { return kinds(p, "exp_avg") }

func (*lion) Hyperparameters(_ int, rate float64) Hyperparameters {
	return Hyperparameters{{"lr", rate}}
}

func (l *lion) Update(ts []Tensor, h Scalars) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		us[i] = Update{
			U:     signed(lerp(t.State[0], t.Gradient, 1-l.beta1), h.Get("lr")),
			State: []*graph.Value{lerp(t.State[0], t.Gradient, 1-l.beta2)},
		}
	}
	return us
}

// Momentum is lr·sign(m).
func (l *lion) Momentum(_ []Tensor, us []Update, h Scalars) []*graph.Value {
	ms := make([]*graph.Value, len(us))
	for i, u := range us {
		ms[i] = signed(u.State[0], h.Get("lr"))
	}
	return ms
}

// signed is size·sign(x), and 0 where x is 0.
func signed(x, size *graph.Value) *graph.Value {
	zero := op.Scalar(x.Builder(), x.DType, 0)
	return op.Where(op.Greater(x, zero), size, op.Where(op.Less(x, zero), op.Neg(size), zero))
}
