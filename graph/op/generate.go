package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func generators() []graph.Op {
	return []graph.Op{new(FullOp), new(IotaOp)}
}

// FullOp is a tensor whose elements are all one value.
type FullOp struct {
	Type  graph.Type `json:"type"`
	Value graph.Real `json:"value"`
}

func (*FullOp) Name() string { return "full" }

func (o *FullOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 0); err != nil {
		return nil, err
	}
	return []graph.Type{o.Type}, checkLiteral(o.Type.DType, float64(o.Value))
}

func (o *FullOp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return nil }

func (o *FullOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Elementwise{View: true, Emit: func(e graph.Emitter, _ []graph.Index) *scalar.Expr {
		return number(e, o.Type.DType.Scalar(), float64(o.Value))
	}}
}

func (o *FullOp) Eval(_, out []*graph.Tensor) {
	for i := range out[0].Data {
		out[0].Data[i] = float64(o.Value)
	}
}

func (*FullOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, o := range []*FullOp{
		{graph.T(graph.F32), 0.1},
		{graph.T(graph.F32, 3, 5), -2.5e-7},
		{graph.T(graph.F32, 2), graph.Real(math.Inf(-1))},
		{graph.T(graph.I32, 7), math.MinInt32},
		{graph.T(graph.I32), -3},
		{graph.T(graph.U32, 65537), math.MaxUint32},
	} {
		cs = append(cs, graph.Case{Op: o, NoGrad: true})
	}
	return cs
}

// Full is a tensor whose elements are all one value.
func Full(b *graph.Builder, d graph.DType, v float64, shape ...int) *graph.Value {
	return b.Apply(&FullOp{graph.T(d, shape...), graph.Real(v)})[0]
}

// Scalar is a single value, of shape [].
func Scalar(b *graph.Builder, d graph.DType, v float64) *graph.Value { return Full(b, d, v) }

// IotaOp is the coordinate along an axis.
type IotaOp struct {
	Type graph.Type `json:"type"`
	Axis int        `json:"axis"`
}

func (*IotaOp) Name() string { return "iota" }

func (o *IotaOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 0); err != nil {
		return nil, err
	}
	return []graph.Type{o.Type}, checkAxis(o.Axis, o.Type.Shape)
}

func (o *IotaOp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return nil }

func (o *IotaOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Elementwise{View: true, Emit: func(_ graph.Emitter, at []graph.Index) *scalar.Expr {
		return at[o.Axis].Expr().To(o.Type.DType.Scalar())
	}}
}

func (o *IotaOp) Eval(_, out []*graph.Tensor) {
	inner := out[0].Shape[o.Axis+1:].Len()
	for i := range out[0].Data {
		out[0].Data[i] = float64(i / inner % out[0].Shape[o.Axis])
	}
}

func (*IotaOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, o := range []*IotaOp{
		{graph.T(graph.F32, 7), 0},
		{graph.T(graph.U32, 3, 5), 1},
		{graph.T(graph.I32, 3, 5, 2), 0},
		{graph.T(graph.U32, 2, 1, 4), 1},
		{graph.T(graph.U32, 70001), 0},
	} {
		cs = append(cs, graph.Case{Op: o, NoGrad: true})
	}
	return cs
}

// Iota is 0, 1, 2, … along the axis.
func Iota(b *graph.Builder, d graph.DType, axis int, shape ...int) *graph.Value {
	return b.Apply(&IotaOp{graph.T(d, shape...), axis})[0]
}

func checkAxis(axis int, s graph.Shape) error {
	if axis < 0 || axis >= len(s) {
		return fmt.Errorf("axis is %d, expected one of the %d of shape %v", axis, len(s), s)
	}
	return nil
}
