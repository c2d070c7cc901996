package optim

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	corrections["dc_asgd"] = func(c Config) (Correction, error) {
		if !(c.DCLambda >= 0) || math.IsInf(c.DCLambda, 0) {
			return nil, fmt.Errorf("optimizer.dc_lambda: found %v, expected a number from 0 on", graph.Real(c.DCLambda))
		}
		return dcASGD{lambda: c.DCLambda}, nil
	}
}

// dcASGD estimates the gradient at the weights that it is applied to, g + λ·g⊙g⊙(x_{t+1} − x_t), with λ·g⊙g in place of the
// Hessian (Zheng et al. 2017, arXiv 1609.08326, equation 10).
type dcASGD struct {
	uncorrected
	lambda float64
}

func (dcASGD) Name() string    { return "dc_asgd" }
func (dcASGD) State() []string { return []string{AppliedState} }

func (c dcASGD) Gradient(t Tensor, s []*graph.Value) *graph.Value {
	moved := op.Scale(s[0], -c.lambda) // λ·(x_{t+1} − x_t)
	return op.Add(t.Gradient, op.Mul(op.Square(t.Gradient), moved))
}

func (dcASGD) Step(_ Tensor, u Update, _ []*graph.Value) (*graph.Value, []*graph.Value) {
	return u.U, []*graph.Value{nil}
}
