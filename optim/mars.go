package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// MARS is the config of MARS-AdamW (Yuan et al., arXiv:2411.10438, algorithm 2) in its approximate form, which keeps
// the last batch's gradient instead of computing it again at the present weights. c = g + γ·β₁/(1−β₁)·(g − g₋₁),
// shortened to norm 1 if it is longer, goes to AdamW. The norm is taken for each matrix alone. As in the official code
// (AGI-Arena/MARS, mars.py), g₋₁ is zero at the first step, and AdamW updates the parameters that are not matrices.
// Embeddings are matrices.
type MARS struct {
	AdamW AdamW // LR, Betas and Eps of the matrices
	Gamma float64
}

// DefaultMARS has the defaults of MARS.
func DefaultMARS() *MARS {
	return &MARS{AdamW: AdamW{LR: 6e-3, Betas: [2]float64{0.95, 0.99}, Eps: 1e-8}, Gamma: 0.025}
}

// Fields lists the hyperparameters.
func (c *MARS) Fields() []Field {
	return append(c.AdamW.Fields(), Field{Name: "gamma", About: "scale of the variance reduction", Value: &c.Gamma, Range: magnitudes})
}

// LearningRate is LR.
func (c *MARS) LearningRate() float64 { return c.AdamW.LR }
func (*MARS) takes(p Param) bool      { return len(p.Type.Shape) >= 2 && !p.AdamW }
func (c *MARS) rule() Rule            { return &mars{adamW{c.AdamW.Betas, c.AdamW.Eps}, c.Gamma} }

type mars struct {
	adamW
	gamma float64
}

func (m *mars) State(p Param) []graph.Named {
	return append(m.adamW.State(p), kinds(p, "last_grad")...)
}

func (m *mars) Update(ts []Tensor, h Scalars) []Update {
	corrected := make([]Tensor, len(ts))
	for i, t := range ts {
		c := op.Add(t.Gradient, op.Scale(op.Sub(t.Gradient, t.State[2]), m.gamma*m.betas[0]/(1-m.betas[0])))
		n := len(c.Shape)
		norm := op.Sqrt(op.Sum(op.Square(c), []int{n - 2, n - 1}, true))
		corrected[i] = t
		corrected[i].Gradient = op.Div(c, op.Maximum(norm, op.Scalar(c.Builder(), c.DType, 1)))
	}
	us := m.adamW.Update(corrected, h)
	for i, t := range ts {
		us[i].State = append(us[i].State, t.Gradient)
	}
	return us
}
