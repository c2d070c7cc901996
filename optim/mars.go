package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	rules["mars"] = registered{make: newMARS, takes: func(_ Config, p Param) bool { return len(p.Type.Shape) == 2 }}
}

// mars is MARS-AdamW (Yuan et al., arXiv:2411.10438, algorithm 2) in its approximate form, which keeps the gradient of the batch
// before instead of taking it again: c = g + γ·β₁/(1−β₁)·(g − g₋₁), shortened to norm 1 if it is longer, goes to AdamW. As
// in the official code (AGI-Arena/MARS, mars.py), g₋₁ is zero at the first step, and what is not a matrix is left to
// AdamW as it is; embeddings are matrices.
type mars struct {
	adamW
	gamma float64
}

func newMARS(c Config) (Rule, error) {
	betas, err := c.betas(2)
	if err != nil {
		return nil, err
	}
	return &mars{adamW{[2]float64(betas), c.Eps}, c.Gamma}, nil
}

func (*mars) Name() string { return "mars" }

func (m *mars) State(p Param) []graph.Named {
	return append(m.adamW.State(p), kinds(p, "last_grad")...)
}

func (m *mars) Update(ts []Tensor, numbers []*graph.Value) []Update {
	corrected := make([]Tensor, len(ts))
	for i, t := range ts {
		c := op.Add(t.Gradient, op.Scale(op.Sub(t.Gradient, t.State[2]), m.gamma*m.betas[0]/(1-m.betas[0])))
		norm := op.Sqrt(op.Sum(op.Square(c), nil, true))
		corrected[i] = t
		corrected[i].Gradient = op.Div(c, op.Maximum(norm, op.Scalar(c.Builder(), c.DType, 1)))
	}
	us := m.adamW.Update(corrected, numbers)
	for i, t := range ts {
		us[i].State = append(us[i].State, t.Gradient)
	}
	return us
}
