// Package op is the catalogue of ops, a family a file. The functions here are how graphs are written; the types are what
// the file format stores.
package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
)

// binary is what the two-input pointwise ops share: both inputs and the result have one type.
type binary struct{}

func (binary) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	if !in[0].Equal(in[1]) {
		return nil, fmt.Errorf("inputs are %v and %v, expected one type", in[0], in[1])
	}
	return in[:1], nil
}

// infix is the kernel of a WGSL operator.
func infix(operator string) graph.Kernel {
	return graph.Pointwise(func(a []string) string { return "(" + a[0] + " " + operator + " " + a[1] + ")" }, 2)
}

// each2 is the reference of a two-input pointwise op.
func each2(in, out []*graph.Tensor, f func(x, y float64) float64) {
	for i := range out[0].Data {
		out[0].Data[i] = f(in[0].Data[i], in[1].Data[i])
	}
}

// AddOp is x + y.
type AddOp struct{ binary }

func (*AddOp) Name() string                    { return "add" }
func (*AddOp) Kernel(*graph.Node) graph.Kernel { return infix("+") }
func (*AddOp) Eval(in, out []*graph.Tensor) {
	each2(in, out, func(x, y float64) float64 { return x + y })
}
func (*AddOp) Cases() []graph.Case { return binaryCases(new(AddOp)) }
func (*AddOp) Grad(_ *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{d[0], d[0]}
}

// Add is x + y with NumPy's broadcasting.
func Add(x, y *graph.Value) *graph.Value { return apply2(new(AddOp), x, y) }

// MulOp is x · y.
type MulOp struct{ binary }

func (*MulOp) Name() string                    { return "mul" }
func (*MulOp) Kernel(*graph.Node) graph.Kernel { return infix("*") }
func (*MulOp) Eval(in, out []*graph.Tensor) {
	each2(in, out, func(x, y float64) float64 { return x * y })
}
func (*MulOp) Cases() []graph.Case { return binaryCases(new(MulOp)) }
func (*MulOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{Mul(d[0], n.Inputs[1]), Mul(d[0], n.Inputs[0])}
}

// Mul is x · y with NumPy's broadcasting.
func Mul(x, y *graph.Value) *graph.Value { return apply2(new(MulOp), x, y) }

// binaryCases are odd and even sizes, a scalar, and both broad and narrow shapes.
func binaryCases(o graph.Op) []graph.Case {
	var cs []graph.Case
	for _, s := range []graph.Shape{{}, {1}, {7}, {64}, {3, 5}, {2, 3, 4}} {
		t := graph.Type{DType: graph.F32, Shape: s}
		cs = append(cs, graph.Case{Op: o, Inputs: []graph.Type{t, t}})
	}
	return cs
}

var _ = math.Pi
