package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// DCASGD estimates the gradient at the weights x_t that it is applied to. A stale microbatch takes its gradient g at
// x_{t−1}; the estimate is g + λ·g⊙g⊙(x_t − x_{t−1}), with λ·g⊙g in place of the Hessian (Zheng et al. 2017,
// arXiv:1609.08326, equation 10). It is computed from the mean gradient of the batch, with λ times the staleness.
type DCASGD struct {
	NoCorrection
	Lambda float64 // λ
}

// DefaultDCASGD has the defaults of DCASGD.
func DefaultDCASGD() *DCASGD { return &DCASGD{Lambda: 0.04} }

// Fields lists the hyperparameters.
func (c *DCASGD) Fields() []Field {
	return []Field{{Name: "dc_lambda", About: "scale of the estimated Hessian in dc_asgd", Value: &c.Lambda, Range: magnitudes}}
}

// State is the last change of the weights.
func (*DCASGD) State() []string { return []string{AppliedState} }

// Gradient returns the estimate.
func (c *DCASGD) Gradient(t Tensor, s []*graph.Value) *graph.Value {
	moved := op.Scale(s[0], -c.Lambda*t.Staleness) // r·λ·(x_t − x_{t−1}) with staleness r
	return op.Add(t.Gradient, op.Mul(op.Square(t.Gradient), moved))
}

// Step returns the update as it is.
func (*DCASGD) Step(_ Tensor, u Update, _ []*graph.Value) (*graph.Value, []*graph.Value) {
	return u.U, []*graph.Value{nil}
}
