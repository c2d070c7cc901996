package op

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func concatenations() []graph.Op {
	return []graph.Op{new(ConcatOp), new(PadOp)}
}

// maxSelected is the number of inputs that a concatenation reads in one kernel, since bindings are few.
const maxSelected = 3

// ConcatOp lays its inputs one after the other along an axis.
type ConcatOp struct {
	Axis int `json:"axis"`
}

func (*ConcatOp) Name() string  { return "concat" }
func (*ConcatOp) TakesFloat16() {}

func (o *ConcatOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) == 0 {
		return nil, fmt.Errorf("got 0 inputs, expected at least 1")
	}
	if err := checkAxis(o.Axis, in[0].Shape); err != nil {
		return nil, err
	}
	s := in[0].Shape.Clone()
	s[o.Axis] = 0
	for i, t := range in {
		want := s.Clone()
		if len(t.Shape) == len(s) {
			want[o.Axis] = t.Shape[o.Axis]
		}
		if t.DType != in[0].DType || !t.Shape.Equal(want) {
			return nil, fmt.Errorf("input %d is %v, expected %v as input 0 is, but along axis %d", i, t, in[0], o.Axis)
		}
		s[o.Axis] += t.Shape[o.Axis]
	}
	return []graph.Type{{DType: in[0].DType, Shape: s}}, nil
}

func (o *ConcatOp) Kernel(n *graph.Node) graph.Kernel {
	switch {
	case len(n.Inputs) <= maxSelected:
		return o.selecting(n)
	case n.Outputs[0].Shape[:o.Axis].Len() == 1 && !slices.ContainsFunc(n.Inputs, partialWord):
		return graph.Join{}
	}
	return graph.Expansion{Expand: func(in []*graph.Value) []*graph.Value {
		for len(in) > maxSelected {
			in = append([]*graph.Value{Concat(o.Axis, in[:maxSelected]...)}, in[maxSelected:]...)
		}
		return []*graph.Value{Concat(o.Axis, in...)}
	}}
}

// partialWord reports whether a value of 16-bit floats ends within a word: only a kernel can put another behind it.
func partialWord(v *graph.Value) bool { return v.Shape.Len()*v.DType.Size()%4 != 0 }

func (o *ConcatOp) selecting(n *graph.Node) graph.Kernel {
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		// From the last input backwards: the first whose end lies beyond the coordinate.
		var expr *scalar.Expr
		end := n.Outputs[0].Shape[o.Axis]
		for i := len(n.Inputs) - 1; i >= 0; i-- {
			extent := n.Inputs[i].Shape[o.Axis]
			from := slices.Clone(at)
			from[o.Axis] = clampedMinus(at[o.Axis], end-extent, extent)
			x := e.Input(i, from)
			if expr == nil {
				expr = x
			} else {
				expr = scalar.Select(expr, x, at[o.Axis].Expr().Less(scalar.U(uint32(end))))
			}
			end -= extent
		}
		return expr
	}}
}

func (o *ConcatOp) Eval(in, out []*graph.Tensor) {
	inner := out[0].Shape[o.Axis+1:].Len()
	row := out[0].Shape[o.Axis] * inner
	start := 0
	for _, t := range in {
		part := t.Shape[o.Axis] * inner
		for r := 0; r*part < len(t.Data); r++ {
			copy(out[0].Data[r*row+start:], t.Data[r*part:(r+1)*part])
		}
		start += part
	}
}

func (o *ConcatOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	grads := make([]*graph.Value, len(n.Inputs))
	start := 0
	for i, x := range n.Inputs {
		limit := start + x.Shape[o.Axis]
		grads[i] = Slice(d[0], o.Axis, start, limit)
		start = limit
	}
	return grads
}

func (*ConcatOp) Cases() []graph.Case {
	cs := cases(graph.Case{Op: &ConcatOp{0}}, [][]graph.Shape{
		{{3}, {5}}, {{1}, {1}, {1}}, {{2, 3}, {1, 3}, {4, 3}}, {{3}, {1}, {2}, {5}, {7}}, {{2, 3}, {1, 3}, {4, 3}, {2, 3}},
		{{4, 2}}, {{33000}, {33001}},
	}...)
	cs = append(cs, cases(graph.Case{Op: &ConcatOp{1}}, [][]graph.Shape{
		{{2, 3}, {2, 1}}, {{3, 1, 2}, {3, 4, 2}, {3, 2, 2}}, {{2, 1}, {2, 2}, {2, 3}, {2, 4}, {2, 5}, {2, 1}},
		{{1, 3, 2}, {1, 1, 2}, {1, 2, 2}, {1, 2, 2}},
	}...)...)
	u := graph.T(graph.U32, 2, 3)
	cs = append(cs, graph.Case{Op: &ConcatOp{1}, Inputs: []graph.Type{u, u}, NoGrad: true})
	for _, extents := range [][]int{{3, 5}, {1}, {1, 1, 1}, {2, 4, 6, 8, 2}, {2, 4, 3, 8, 2}} { // copied as words, and not
		c := graph.Case{Op: &ConcatOp{0}, Tolerance: exact}
		for _, n := range extents {
			c.Inputs = append(c.Inputs, graph.T(graph.BF16, n))
		}
		cs = append(cs, c)
	}
	return cs
}

// Concat lays values one after the other along the axis; their other extents are equal.
func Concat(axis int, xs ...*graph.Value) *graph.Value {
	if len(xs) == 1 {
		return xs[0]
	}
	return graph.Apply1(&ConcatOp{axis}, xs...)
}

// PadOp adds elements of one value before and after along an axis.
type PadOp struct {
	Axis  int        `json:"axis"`
	Low   int        `json:"low"`
	High  int        `json:"high"`
	Value graph.Real `json:"value"`
}

func (*PadOp) Name() string { return "pad" }

func (o *PadOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if err := checkAxis(o.Axis, in[0].Shape); err != nil {
		return nil, err
	}
	if o.Low < 0 || o.High < 0 || o.Low > math.MaxUint32 || o.High > math.MaxUint32 {
		return nil, fmt.Errorf("the padding is %d and %d, expected none below 0", o.Low, o.High)
	}
	s := in[0].Shape.Clone()
	s[o.Axis] += o.Low + o.High
	return []graph.Type{{DType: in[0].DType, Shape: s}}, checkLiteral(in[0].DType, float64(o.Value))
}

func (o *PadOp) Kernel(n *graph.Node) graph.Kernel {
	t := n.Inputs[0].Type
	extent := t.Shape[o.Axis]
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		x := at[o.Axis]
		from := slices.Clone(at)
		from[o.Axis] = clampedMinus(x, o.Low, extent)
		// Below Low the difference wraps round to a large u32.
		inside := x.Expr().Sub(scalar.U(uint32(o.Low))).Less(scalar.U(uint32(extent)))
		return scalar.Select(number(e, t.DType.Scalar(), float64(o.Value)), e.Input(0, from), inside)
	}}
}

func (o *PadOp) Eval(in, out []*graph.Tensor) {
	for i := range out[0].Data {
		out[0].Data[i] = float64(o.Value)
	}
	inner := in[0].Shape[o.Axis+1:].Len()
	part, row := in[0].Shape[o.Axis]*inner, out[0].Shape[o.Axis]*inner
	for r := 0; r*part < len(in[0].Data); r++ {
		copy(out[0].Data[r*row+o.Low*inner:], in[0].Data[r*part:(r+1)*part])
	}
}

func (o *PadOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{Slice(d[0], o.Axis, o.Low, o.Low+n.Inputs[0].Shape[o.Axis])}
}

func (*PadOp) Cases() []graph.Case {
	cs := viewCases(&PadOp{0, 2, 3, 0}, graph.Shape{5})
	cs = append(cs, viewCases(&PadOp{1, 0, 1, 7}, graph.Shape{2, 3, 2})...)
	cs = append(cs, viewCases(&PadOp{2, 4, 0, 1}, graph.Shape{2, 3, 1, 2})...)
	cs = append(cs, viewCases(&PadOp{1, 0, 0, 1}, graph.Shape{2, 3})...)
	cs = append(cs, cases(graph.Case{Op: &PadOp{0, 1, 1, graph.Real(math.Inf(-1))}, NoGrad: true}, []graph.Shape{{3, 2}})...)
	return append(cs, viewCases(&PadOp{0, 1, 60000, 2}, graph.Shape{10001})...)
}

// Pad adds lo elements before and hi after along the axis, all of one value.
func Pad(x *graph.Value, axis, lo, hi int, value float64) *graph.Value {
	if axis >= 0 && axis < len(x.Shape) && lo == 0 && hi == 0 {
		return x
	}
	return graph.Apply1(&PadOp{axis, lo, hi, graph.Real(value)}, x)
}
