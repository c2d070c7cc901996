package op

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func movements() []graph.Op {
	return []graph.Op{new(BroadcastOp), new(ReshapeOp), new(PermuteOp), new(SliceOp)}
}

// strided fills out with in[offset + Σ coordinate·stride].
func strided(in, out *graph.Tensor, offset int, strides []int) {
	at := make([]int, len(out.Shape))
	for i := range out.Data {
		out.Data[i] = in.Data[offset]
		for d := len(at) - 1; d >= 0; d-- {
			at[d]++
			offset += strides[d]
			if at[d] < out.Shape[d] {
				break
			}
			offset -= at[d] * strides[d]
			at[d] = 0
		}
	}
}

// stridesOf is the distance between neighbors along each axis.
func stridesOf(s graph.Shape) []int {
	strides := make([]int, len(s))
	n := 1
	for i := len(s) - 1; i >= 0; i-- {
		strides[i] = n
		n *= s[i]
	}
	return strides
}

// view is the kernel of an op that reads its input at other coordinates.
func view(from func(at []graph.Index) []graph.Index) graph.Kernel {
	return graph.Elementwise{View: true, Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		return e.Input(0, from(at))
	}}
}

// viewCases covers floats, which have gradients, u32 and, where the op takes them, 16-bit floats.
func viewCases(o graph.Op, s graph.Shape) []graph.Case {
	cs := []graph.Case{
		{Op: o, Inputs: []graph.Type{{DType: graph.F32, Shape: s}}},
		{Op: o, Inputs: []graph.Type{{DType: graph.U32, Shape: s}}, NoGrad: true},
	}
	if _, ok := o.(graph.Float16Op); ok {
		cs = append(cs, graph.Case{Op: o, Inputs: []graph.Type{{DType: graph.F16, Shape: s}}, Tolerance: exact})
	}
	return cs
}

// exact is the tolerance of results that are not rounded.
const exact = 1e-30

// BroadcastOp repeats along new leading axes and axes of extent one.
type BroadcastOp struct {
	Shape graph.Shape `json:"shape"`
}

func (*BroadcastOp) Name() string  { return "broadcast" }
func (*BroadcastOp) TakesFloat16() {}

func (o *BroadcastOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	s, lead := in[0].Shape, len(o.Shape)-len(in[0].Shape)
	for i, d := range s {
		if lead < 0 || d != 1 && d != o.Shape[lead+i] {
			return nil, fmt.Errorf("%v does not broadcast to %v", s, o.Shape)
		}
	}
	return []graph.Type{{DType: in[0].DType, Shape: o.Shape}}, nil
}

func (o *BroadcastOp) Kernel(n *graph.Node) graph.Kernel {
	s := n.Inputs[0].Shape
	return view(func(at []graph.Index) []graph.Index {
		from := slices.Clone(at[len(at)-len(s):])
		for i, d := range s {
			if d == 1 {
				from[i] = graph.Const(0)
			}
		}
		return from
	})
}

func (o *BroadcastOp) Eval(in, out []*graph.Tensor) {
	s, lead := in[0].Shape, len(o.Shape)-len(in[0].Shape)
	strides := append(make([]int, lead), stridesOf(s)...)
	for i, d := range s {
		if d == 1 {
			strides[lead+i] = 0
		}
	}
	strided(in[0], out[0], 0, strides)
}

func (o *BroadcastOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	s, lead := n.Inputs[0].Shape, len(o.Shape)-len(n.Inputs[0].Shape)
	axes := firstAxes(lead)
	for i, extent := range s {
		if extent == 1 && o.Shape[lead+i] != 1 {
			axes = append(axes, lead+i)
		}
	}
	return []*graph.Value{Reshape(Sum(d[0], axes, false), s...)}
}

func (*BroadcastOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range [][2]graph.Shape{
		{{}, {}}, {{}, {5}}, {{1}, {3, 7}}, {{7}, {3, 7}}, {{3, 1}, {2, 3, 5}}, {{2, 1, 4}, {2, 3, 4}},
		{{1, 1, 1, 1, 1}, {2, 1, 3, 2, 1}}, {{1, 3}, {22000, 3}},
	} {
		cs = append(cs, viewCases(&BroadcastOp{c[1]}, c[0])...)
	}
	return cs
}

// Broadcast repeats x along new leading axes and axes of extent one, by NumPy's rule.
func Broadcast(x *graph.Value, shape ...int) *graph.Value {
	if x.Shape.Equal(shape) {
		return x
	}
	return graph.Apply1(&BroadcastOp{slices.Clone(shape)}, x)
}

// BroadcastShapes is the shape that NumPy's rule gives two shapes.
func BroadcastShapes(a, b graph.Shape) (graph.Shape, error) {
	long, short := a, b
	if len(a) < len(b) {
		long, short = b, a
	}
	out := long.Clone()
	for i, d := range short {
		j := len(long) - len(short) + i
		switch {
		case d == long[j] || d == 1:
		case long[j] == 1:
			out[j] = d
		default:
			return nil, fmt.Errorf("shapes %v and %v do not broadcast", a, b)
		}
	}
	return out, nil
}

// ReshapeOp gives the elements another shape, in the same order.
type ReshapeOp struct {
	Shape graph.Shape `json:"shape"`
}

func (*ReshapeOp) Name() string  { return "reshape" }
func (*ReshapeOp) TakesFloat16() {}

func (o *ReshapeOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if err := o.Shape.Check(); err != nil {
		return nil, err
	}
	if o.Shape.Len() != in[0].Shape.Len() {
		return nil, fmt.Errorf("%v has %d elements, %v has %d", in[0].Shape, in[0].Shape.Len(), o.Shape, o.Shape.Len())
	}
	return []graph.Type{{DType: in[0].DType, Shape: o.Shape}}, nil
}

func (o *ReshapeOp) Kernel(n *graph.Node) graph.Kernel {
	s := n.Inputs[0].Shape
	return view(func(at []graph.Index) []graph.Index { return graph.Unflatten(s, graph.Flatten(o.Shape, at)) })
}

func (*ReshapeOp) Eval(in, out []*graph.Tensor) { copy(out[0].Data, in[0].Data) }

func (*ReshapeOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{Reshape(d[0], n.Inputs[0].Shape...)}
}

func (*ReshapeOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range [][2]graph.Shape{
		{{}, {1, 1}}, {{1}, {}}, {{12}, {3, 4}}, {{3, 4}, {4, 3}}, {{2, 3, 5}, {6, 5}}, {{2, 15}, {2, 3, 1, 5}},
		{{7, 11}, {1, 77}}, {{300, 221}, {221, 300}}, {{2, 3, 4, 5}, {5, 4, 3, 2}},
	} {
		cs = append(cs, viewCases(&ReshapeOp{c[1]}, c[0])...)
	}
	return cs
}

// Reshape gives the elements another shape, in the same order. One extent may be −1: it follows from the others.
func Reshape(x *graph.Value, shape ...int) *graph.Value {
	s := graph.Shape(slices.Clone(shape))
	if i := slices.Index(s, -1); i >= 0 {
		s[i] = 1
		n := s.Len()
		if err := s.Check(); err != nil || x.Shape.Len()%n != 0 {
			x.Builder().Fail("reshape", "%v does not reshape to %v", x.Shape, graph.Shape(shape))
		}
		s[i] = x.Shape.Len() / n
	}
	if x.Shape.Equal(s) {
		return x
	}
	return graph.Apply1(&ReshapeOp{s}, x)
}

// PermuteOp reorders axes: axis i of the result is axis Axes[i] of the input.
type PermuteOp struct {
	Axes []int `json:"axes"`
}

func (*PermuteOp) Name() string  { return "permute" }
func (*PermuteOp) TakesFloat16() {}

func (o *PermuteOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(o.Axes))
	if len(sorted) == 0 || !slices.Equal(sorted, firstAxes(len(in[0].Shape))) {
		return nil, fmt.Errorf("axes are %v, expected an order of those of shape %v", o.Axes, in[0].Shape)
	}
	s := make(graph.Shape, len(o.Axes))
	for i, a := range o.Axes {
		s[i] = in[0].Shape[a]
	}
	return []graph.Type{{DType: in[0].DType, Shape: s}}, nil
}

func (o *PermuteOp) Kernel(*graph.Node) graph.Kernel {
	return view(func(at []graph.Index) []graph.Index {
		from := make([]graph.Index, len(at))
		for i, a := range o.Axes {
			from[a] = at[i]
		}
		return from
	})
}

func (o *PermuteOp) Eval(in, out []*graph.Tensor) {
	s := stridesOf(in[0].Shape)
	strides := make([]int, len(s))
	for i, a := range o.Axes {
		strides[i] = s[a]
	}
	strided(in[0], out[0], 0, strides)
}

func (o *PermuteOp) Grad(_ *graph.Node, d []*graph.Value) []*graph.Value {
	inverse := make([]int, len(o.Axes))
	for i, a := range o.Axes {
		inverse[a] = i
	}
	return []*graph.Value{Permute(d[0], inverse...)}
}

func (*PermuteOp) Cases() []graph.Case {
	cs := viewCases(&PermuteOp{[]int{0}}, graph.Shape{5})
	cs = append(cs, viewCases(&PermuteOp{[]int{1, 0}}, graph.Shape{3, 5})...)
	cs = append(cs, viewCases(&PermuteOp{[]int{2, 0, 1}}, graph.Shape{3, 5, 2})...)
	cs = append(cs, viewCases(&PermuteOp{[]int{0, 2, 1, 3}}, graph.Shape{2, 7, 3, 5})...)
	cs = append(cs, viewCases(&PermuteOp{[]int{4, 1, 3, 0, 2}}, graph.Shape{2, 1, 3, 2, 3})...)
	return append(cs, viewCases(&PermuteOp{[]int{1, 0}}, graph.Shape{257, 256})...)
}

// Permute reorders axes: axis i of the result is axis axes[i] of x.
func Permute(x *graph.Value, axes ...int) *graph.Value {
	if slices.Equal(axes, firstAxes(len(x.Shape))) {
		return x
	}
	return graph.Apply1(&PermuteOp{slices.Clone(axes)}, x)
}

// Transpose exchanges the last two axes.
func Transpose(x *graph.Value) *graph.Value {
	n := len(x.Shape)
	if n < 2 {
		x.Builder().Fail("transpose", "%v has fewer than two axes", x)
	}
	axes := firstAxes(n)
	axes[n-1], axes[n-2] = n-2, n-1
	return Permute(x, axes...)
}

// SliceOp is the coordinates Start ≤ i < Limit along an axis.
type SliceOp struct {
	Axis  int `json:"axis"`
	Start int `json:"start"`
	Limit int `json:"limit"`
}

func (*SliceOp) Name() string  { return "slice" }
func (*SliceOp) TakesFloat16() {}

func (o *SliceOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if err := checkAxis(o.Axis, in[0].Shape); err != nil {
		return nil, err
	}
	if n := in[0].Shape[o.Axis]; o.Start < 0 || o.Start >= o.Limit || o.Limit > n {
		return nil, fmt.Errorf("the range is [%d, %d), expected a part of [0, %d)", o.Start, o.Limit, n)
	}
	s := in[0].Shape.Clone()
	s[o.Axis] = o.Limit - o.Start
	return []graph.Type{{DType: in[0].DType, Shape: s}}, nil
}

func (o *SliceOp) Kernel(*graph.Node) graph.Kernel {
	return view(func(at []graph.Index) []graph.Index {
		from := slices.Clone(at)
		from[o.Axis] = at[o.Axis].Plus(graph.Const(o.Start))
		return from
	})
}

func (o *SliceOp) Eval(in, out []*graph.Tensor) {
	strides := stridesOf(in[0].Shape)
	strided(in[0], out[0], o.Start*strides[o.Axis], strides)
}

func (o *SliceOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{Pad(d[0], o.Axis, o.Start, n.Inputs[0].Shape[o.Axis]-o.Limit, 0)}
}

func (*SliceOp) Cases() []graph.Case {
	cs := viewCases(&SliceOp{0, 2, 5}, graph.Shape{7})
	cs = append(cs, viewCases(&SliceOp{0, 0, 1}, graph.Shape{3, 4})...)
	cs = append(cs, viewCases(&SliceOp{1, 3, 4}, graph.Shape{3, 4})...)
	cs = append(cs, viewCases(&SliceOp{2, 1, 4}, graph.Shape{2, 3, 5, 2})...)
	cs = append(cs, viewCases(&SliceOp{0, 0, 3}, graph.Shape{3, 1})...)
	return append(cs, viewCases(&SliceOp{0, 5, 70000}, graph.Shape{70001})...)
}

// Slice is the part of x with start ≤ i < limit along the axis.
func Slice(x *graph.Value, axis, start, limit int) *graph.Value {
	if axis >= 0 && axis < len(x.Shape) && start == 0 && limit == x.Shape[axis] {
		return x
	}
	return graph.Apply1(&SliceOp{axis, start, limit}, x)
}

// clampedMinus is max(0, min(x − low, n − 1)): a coordinate that is in bounds whether or not it is the one meant.
func clampedMinus(x graph.Index, low, n int) graph.Index {
	if low == 0 && x.Bound() <= n {
		return x
	}
	least, most := scalar.U(uint32(low)), scalar.U(uint32(min(low+n-1, math.MaxUint32)))
	return graph.IndexOf(scalar.Apply("clamp", x.Expr(), least, most).Sub(least), n)
}
