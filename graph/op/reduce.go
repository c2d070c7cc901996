package op

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

func reductions() []graph.Op {
	return []graph.Op{sumFold.over(nil), maxFold.over(nil), minFold.over(nil)}
}

// fold is what an element is combined with those before it by.
type fold struct {
	name      string
	kernel    graph.Fold
	start     float64
	combine   func(d graph.DType, acc, x float64) float64
	shares    bool // the elements that equal the result share the gradient, else each has it
	tolerance float64
}

var (
	sumFold = &fold{name: "sum", kernel: graph.Sum, tolerance: 2e-5, combine: func(d graph.DType, acc, x float64) float64 {
		if d.Float() {
			return acc + x
		}
		return wrap(d, int64(acc+x))
	}}
	maxFold = &fold{name: "max", kernel: graph.Max, start: math.Inf(-1), shares: true,
		combine: func(_ graph.DType, acc, x float64) float64 { return math.Max(acc, x) }}
	minFold = &fold{name: "min", kernel: graph.Min, start: math.Inf(1), shares: true,
		combine: func(_ graph.DType, acc, x float64) float64 { return math.Min(acc, x) }}
)

func (f *fold) over(axes []int) *ReductionOp { return &ReductionOp{Axes: axes, fold: f} }

// ReductionOp folds the elements along axes, ascending, which leave the shape.
type ReductionOp struct {
	Axes []int `json:"axes"`
	fold *fold
}

func (r *ReductionOp) Name() string { return r.fold.name }

func (r *ReductionOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Reduction{Axes: r.Axes, Fold: r.fold.kernel}
}

func (r *ReductionOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if len(r.Axes) == 0 {
		return nil, fmt.Errorf("no axes to reduce")
	}
	for i, a := range r.Axes {
		if err := checkAxis(a, in[0].Shape); err != nil {
			return nil, err
		}
		if i > 0 && a <= r.Axes[i-1] {
			return nil, fmt.Errorf("axes are %v, expected ascending", r.Axes)
		}
	}
	return []graph.Type{{DType: in[0].DType, Shape: without(in[0].Shape, r.Axes)}}, nil
}

// without is the shape after the axes have left.
func without(s graph.Shape, axes []int) graph.Shape {
	var out graph.Shape
	for i, d := range s {
		if !slices.Contains(axes, i) {
			out = append(out, d)
		}
	}
	return out
}

// keepDims is the shape in which the axes have extent one.
func keepDims(s graph.Shape, axes []int) graph.Shape {
	s = s.Clone()
	for _, a := range axes {
		s[a] = 1
	}
	return s
}

// spread repeats the result of a reduction over the input's shape.
func (r *ReductionOp) spread(x, y *graph.Value) *graph.Value {
	return Broadcast(Reshape(y, keepDims(x.Shape, r.Axes)...), x.Shape...)
}

func (r *ReductionOp) Eval(in, out []*graph.Tensor) {
	acc := out[0].Data
	for i := range acc {
		acc[i] = r.fold.start
	}
	shape := in[0].Shape
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if !slices.Contains(r.Axes, i) {
			strides[i] = n
			n *= shape[i]
		}
	}
	at, to := make([]int, len(shape)), 0
	for _, x := range in[0].Data {
		acc[to] = r.fold.combine(in[0].DType, acc[to], x)
		for d := len(at) - 1; d >= 0; d-- {
			at[d]++
			to += strides[d]
			if at[d] < shape[d] {
				break
			}
			to -= at[d] * strides[d]
			at[d] = 0
		}
	}
}

func (r *ReductionOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct {
		shape graph.Shape
		axes  []int
	}{
		{graph.Shape{1}, []int{0}}, {graph.Shape{7}, []int{0}}, {graph.Shape{3, 5}, []int{0}}, {graph.Shape{3, 5}, []int{1}},
		{graph.Shape{3, 5}, []int{0, 1}}, {graph.Shape{2, 3, 4, 5}, []int{1, 3}}, {graph.Shape{2, 3, 4, 5}, []int{0, 2}},
		{graph.Shape{5, 1, 3}, []int{1}}, {graph.Shape{2, 3, 1, 4, 2}, []int{0, 1, 2, 3, 4}}, {graph.Shape{70001}, []int{0}},
		{graph.Shape{3, 1000}, []int{1}}, {graph.Shape{1000, 67}, []int{0}}, {graph.Shape{65536, 2}, []int{1}},
	} {
		cs = append(cs, graph.Case{Op: r.fold.over(c.axes), Inputs: []graph.Type{{DType: graph.F32, Shape: c.shape}},
			Tolerance: r.fold.tolerance})
	}
	for _, d := range []graph.DType{graph.I32, graph.U32} {
		cs = append(cs, graph.Case{Op: r.fold.over([]int{1}), Inputs: []graph.Type{graph.T(d, 6, 37)}, Fill: wideIntegers(d),
			NoGrad: true})
	}
	return cs
}

func (r *ReductionOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	if r.fold.shares {
		return []*graph.Value{r.shareTies(n, d[0])}
	}
	return []*graph.Value{r.spread(n.Inputs[0], d[0])}
}

// shareTies divides the gradient among the elements that equal the result.
func (r *ReductionOp) shareTies(n *graph.Node, d *graph.Value) *graph.Value {
	x, y := n.Inputs[0], n.Outputs[0]
	hit := Cast(Equal(x, r.spread(x, y)), x.DType)
	count := Sum(hit, r.Axes, false)
	return Mul(hit, r.spread(x, Div(d, count)))
}

// reduce resolves the axes (nil is all, negative counts from the end), applies the op and keeps extents of one.
func (f *fold) reduce(x *graph.Value, axes []int, keep bool) *graph.Value {
	if axes == nil {
		axes = firstAxes(len(x.Shape))
	}
	axes = slices.Clone(axes)
	for i, a := range axes {
		if a < 0 {
			axes[i] = a + len(x.Shape)
		}
	}
	slices.Sort(axes)
	if len(axes) == 0 {
		return x
	}
	y := graph.Apply1(f.over(axes), x)
	if keep {
		y = Reshape(y, keepDims(x.Shape, axes)...)
	}
	return y
}

// Sum adds over the axes (nil is all, negative counts from the end); they leave the shape, or with keep stay as one.
// Integers wrap.
func Sum(x *graph.Value, axes []int, keep bool) *graph.Value {
	return sumFold.reduce(x, axes, keep)
}

// Mean is Sum over the number of elements that each result is made of; x is float.
func Mean(x *graph.Value, axes []int, keep bool) *graph.Value {
	s := Sum(x, axes, keep)
	return Scale(s, float64(s.Shape.Len())/float64(x.Shape.Len()))
}

// ReduceMax is the largest over the axes, which are as in Sum. Equal elements share the gradient.
func ReduceMax(x *graph.Value, axes []int, keep bool) *graph.Value {
	return maxFold.reduce(x, axes, keep)
}

// ReduceMin is the smallest over the axes, which are as in Sum. Equal elements share the gradient.
func ReduceMin(x *graph.Value, axes []int, keep bool) *graph.Value {
	return minFold.reduce(x, axes, keep)
}
