package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// SoftcapOp is Cap · tanh(x / Cap). Its gradient needs the result alone, so only that is kept for the backward pass.
type SoftcapOp struct {
	attributed
	Cap graph.Real `json:"cap"`
}

func (*SoftcapOp) Name() string { return "softcap" }

func (o *SoftcapOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if !(o.Cap > 0) || math.IsInf(float64(o.Cap), 0) {
		return nil, fmt.Errorf("cap is %v, expected a number above 0", o.Cap)
	}
	return o.attributed.Infer(in)
}

func (o *SoftcapOp) Kernel(*graph.Node) graph.Kernel {
	most := float64(o.Cap)
	return graph.Pointwise(1, func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
		return emitTanh(e, a[0].Mul(scalar.F(1/most))).Mul(scalar.F(most))
	})
}

func (o *SoftcapOp) Eval(in, out []*graph.Tensor) {
	most := float64(o.Cap)
	each(in, out, func(x float64) float64 { return most * math.Tanh(x/most) })
}

func (o *SoftcapOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	y := n.Outputs[0]
	return []*graph.Value{Mul(d[0], Shift(Scale(Square(y), -1/float64(o.Cap*o.Cap)), 1))}
}

func (*SoftcapOp) Cases() []graph.Case {
	return cases(graph.Case{Op: &SoftcapOp{Cap: 1.5}}, attributedShapes...)
}

// Softcap is most · tanh(x / most).
func Softcap(x *graph.Value, most float64) *graph.Value {
	return graph.Apply1(&SoftcapOp{Cap: graph.Real(most)}, x)
}
