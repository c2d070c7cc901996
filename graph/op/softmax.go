package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
)

func softmaxes() []graph.Op {
	return []graph.Op{new(SoftmaxOp), new(LogSoftmaxOp)}
}

// rowwise is the shape rule of an op of one float input that works along the last axis.
func rowwise(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	return in[:1], wantRows(in[0])
}

func wantRows(t graph.Type) error {
	if len(t.Shape) == 0 {
		return fmt.Errorf("input 0 is %v, expected at least one axis", t)
	}
	return wantFloat(0, t)
}

// expansion is the kernel of an op that is written in others.
func expansion(f func(in []*graph.Value) []*graph.Value) graph.Kernel {
	return graph.Expansion{Expand: f}
}

// rows calls f with each row of the tensors along their last axis.
func rows(in, out *graph.Tensor, f func(x, y []float64)) {
	n := in.Shape[len(in.Shape)-1]
	for i := 0; i < len(in.Data); i += n {
		f(in.Data[i:i+n], out.Data[i:i+n])
	}
}

// logSumExp is log Σ eˣ without overflow.
func logSumExp(x []float64) float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = math.Max(top, v)
	}
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}

var rowShapes = [][]graph.Shape{
	{{1}}, {{7}}, {{64}}, {{3, 5}}, {{2, 3, 65}}, {{2, 1, 3, 2, 4}}, {{5, 1}}, {{2, 1003}}, {{22000, 3}}, {{1, 70001}},
}

// SoftmaxOp is eˣ/Σeˣ along the last axis.
type SoftmaxOp struct{}

func (*SoftmaxOp) Name() string                                { return "softmax" }
func (*SoftmaxOp) Infer(in []graph.Type) ([]graph.Type, error) { return rowwise(in) }

func (*SoftmaxOp) Kernel(*graph.Node) graph.Kernel {
	return expansion(func(in []*graph.Value) []*graph.Value {
		x := in[0]
		e := Exp(Sub(x, ReduceMax(x, lastAxis(x), true)))
		return []*graph.Value{Mul(e, Reciprocal(Sum(e, lastAxis(x), true)))}
	})
}

func (*SoftmaxOp) Eval(in, out []*graph.Tensor) {
	rows(in[0], out[0], func(x, y []float64) {
		lse := logSumExp(x)
		for i, v := range x {
			y[i] = math.Exp(v - lse)
		}
	})
}

func (*SoftmaxOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	y := n.Outputs[0]
	return []*graph.Value{Mul(y, Sub(d[0], Sum(Mul(d[0], y), lastAxis(y), true)))}
}

func (*SoftmaxOp) Cases() []graph.Case {
	return append(cases(graph.Case{Op: new(SoftmaxOp), Tolerance: 5e-6}, rowShapes...),
		cases(graph.Case{Op: new(SoftmaxOp), Low: -200, High: 200, Tolerance: 5e-5}, []graph.Shape{{4, 33}})...)
}

// Softmax is eˣ/Σeˣ along the last axis.
func Softmax(x *graph.Value) *graph.Value { return graph.Apply1(new(SoftmaxOp), x) }

// LogSoftmaxOp is x − log Σeˣ along the last axis.
type LogSoftmaxOp struct{}

func (*LogSoftmaxOp) Name() string                                { return "log_softmax" }
func (*LogSoftmaxOp) Infer(in []graph.Type) ([]graph.Type, error) { return rowwise(in) }

func (*LogSoftmaxOp) Kernel(*graph.Node) graph.Kernel {
	return expansion(func(in []*graph.Value) []*graph.Value {
		x := in[0]
		shifted := Sub(x, ReduceMax(x, lastAxis(x), true))
		return []*graph.Value{Sub(shifted, Log(Sum(Exp(shifted), lastAxis(x), true)))}
	})
}

func (*LogSoftmaxOp) Eval(in, out []*graph.Tensor) {
	rows(in[0], out[0], func(x, y []float64) {
		lse := logSumExp(x)
		for i, v := range x {
			y[i] = v - lse
		}
	})
}

func (*LogSoftmaxOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	y := n.Outputs[0]
	return []*graph.Value{Sub(d[0], Mul(Exp(y), Sum(d[0], lastAxis(y), true)))}
}

func (*LogSoftmaxOp) Cases() []graph.Case {
	return append(cases(graph.Case{Op: new(LogSoftmaxOp), Tolerance: 5e-6}, rowShapes...),
		cases(graph.Case{Op: new(LogSoftmaxOp), Low: -200, High: 200}, []graph.Shape{{4, 33}})...)
}

// LogSoftmax is x − log Σeˣ along the last axis.
func LogSoftmax(x *graph.Value) *graph.Value { return graph.Apply1(new(LogSoftmaxOp), x) }
