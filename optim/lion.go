package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	rules["lion"] = registered{make: func(c Config) (Rule, error) {
		betas, err := c.betas(2)
		if err != nil {
			return nil, err
		}
		return &lion{betas[0], betas[1]}, nil
	}}
}

// lion is Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675, algorithm 2; google/automl,
// lion_pytorch.py): u = lr·sign(β₁·m + (1−β₁)·g); m ← β₂·m + (1−β₂)·g.
type lion struct{ beta1, beta2 float64 }

func (*lion) Name() string                          { return "lion" }
func (*lion) State(p Param) []graph.Named           { return kinds(p, "exp_avg") }
func (*lion) Numbers(_ int, rate float64) []float64 { return []float64{rate} }

func (l *lion) Update(ts []Tensor, numbers []*graph.Value) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		us[i] = Update{
			U:     signed(lerp(t.State[0], t.Gradient, 1-l.beta1), numbers[0]),
			State: []*graph.Value{lerp(t.State[0], t.Gradient, 1-l.beta2)},
		}
	}
	return us
}

// Momentum is lr·sign(m).
func (l *lion) Momentum(_ []Tensor, us []Update, numbers []*graph.Value) []*graph.Value {
	ms := make([]*graph.Value, len(us))
	for i, u := range us {
		ms[i] = signed(u.State[0], numbers[0])
	}
	return ms
}

// signed is size·sign(x), 0 where x is.
func signed(x, size *graph.Value) *graph.Value {
	zero := op.Scalar(x.Builder(), x.DType, 0)
	return op.Where(op.Greater(x, zero), size, op.Where(op.Less(x, zero), op.Neg(size), zero))
}
