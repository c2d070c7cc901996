package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// CastOp converts to another dtype.
type CastOp struct {
	To graph.DType `json:"to"`
}

func (*CastOp) Name() string  { return "cast" }
func (*CastOp) TakesFloat16() {}

func (o *CastOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	from := in[0].DType
	if from.Float16() && !o.To.Float() || o.To.Float16() && !from.Float() { // which would round twice
		return nil, fmt.Errorf("input 0 is %v: there is no cast to %v, cast to f32 between", in[0], o.To)
	}
	return []graph.Type{{DType: o.To, Shape: in[0].Shape}}, nil
}

// The largest f32 that each integer type holds.
const (
	maxI32AsF32 = math.MaxInt32 - 127
	maxU32AsF32 = math.MaxUint32 - 255
)

// Kernel is a view for a 16-bit float that becomes f32: nothing is rounded, and the 16-bit float takes less memory.
func (o *CastOp) Kernel(n *graph.Node) graph.Kernel {
	from := n.Inputs[0].DType
	k := graph.Pointwise(1, func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr { return o.emit(e, from, a[0]) })
	k.View = from.Float16() && o.To == graph.F32
	return k
}

func (o *CastOp) emit(e graph.Emitter, from graph.DType, x *scalar.Expr) *scalar.Expr {
	switch {
	case from == o.To:
		return x
	case from.Float16() && o.To.Float16():
		return o.To.Narrow(from.Widen(e.Let(x)), e.Let)
	case from.Float16():
		return from.Widen(e.Let(x))
	case o.To.Float16():
		return o.To.Narrow(x, e.Let)
	case from == graph.F32 && o.To == graph.I32: // out of range is undefined on some drivers
		return scalar.Apply("clamp", x, scalar.F(math.MinInt32), scalar.F(maxI32AsF32)).To(scalar.I32)
	case from == graph.F32 && o.To == graph.U32:
		return scalar.Apply("clamp", x, scalar.F(0), scalar.F(maxU32AsF32)).To(scalar.U32)
	}
	return x.To(o.To.Scalar())
}

func (o *CastOp) Eval(in, out []*graph.Tensor) {
	from := in[0].DType
	each(in, out, func(x float64) float64 {
		switch {
		case o.To.Float16():
			return o.To.Round(x)
		case o.To.Float():
			return x
		case !from.Float():
			return wrap(o.To, int64(x))
		case math.IsNaN(x):
			return 0
		case o.To == graph.I32:
			return math.Trunc(math.Min(math.Max(x, math.MinInt32), maxI32AsF32))
		}
		return math.Trunc(math.Min(math.Max(x, 0), maxU32AsF32))
	})
}

// Grad passes the gradient on, as if nothing were rounded: it is f32 on both sides.
func (o *CastOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	if !o.To.Float() || !n.Inputs[0].DType.Float() {
		return []*graph.Value{nil}
	}
	return d[:1]
}

func (*CastOp) Cases() []graph.Case {
	var cs []graph.Case
	dtypes := []graph.DType{graph.F32, graph.I32, graph.U32}
	for _, from := range dtypes {
		for _, to := range dtypes {
			for _, s := range []graph.Shape{{}, {41}, {3, 7}} {
				cs = append(cs, graph.Case{
					Op: &CastOp{To: to}, Inputs: []graph.Type{{DType: from, Shape: s}}, Fill: wideIntegers(from),
					Low: -1e5, High: 1e5, NoGrad: !from.Float() || !to.Float(),
				})
			}
		}
	}
	return append(cs, float16Casts()...)
}

// float16Casts are of values that f32 holds, since a reference that rounds once and a device that rounds twice may
// differ.
func float16Casts() []graph.Case {
	var cs []graph.Case
	for _, c := range [][2]graph.DType{
		{graph.F32, graph.F16}, {graph.F32, graph.BF16}, {graph.F16, graph.F32}, {graph.BF16, graph.F32}, {graph.BF16, graph.F16},
	} {
		for i, s := range []graph.Shape{{}, {1}, {2}, {7}, {3, 5}, {2, 3, 4}, {70001}} {
			k := graph.Case{Op: &CastOp{To: c[1]}, Inputs: []graph.Type{{DType: c[0], Shape: s}}, Tolerance: exact, NoGrad: c[1].Float16()}
			if i%2 == 0 {
				k.Fill, k.NoGrad = float16Edges, true // central differences of large or infinite values are meaningless
			}
			cs = append(cs, k)
		}
	}
	return cs
}

// float16Edges fills with ties and ends of the ranges of 16-bit floats, normal and denormal.
func float16Edges(_, j int) float64 {
	ends := []float64{1 + 0x1p-11, 1 + 0x3p-11, 65504, 65519.99609375, 65520, 1e9, 0x1p-14, 0x1.ffcp-15, 0x1.ff8p-15, 0x1p-24, 0x1p-25,
		0x1.8p-25, 0x1p-26, 1 + 0x1p-8, 1 + 0x3p-8, 0x1.fep127, 0x1.fffffep127, 0x1p-126, 0x1p-133, 0x1p-134, 0x1.8p-134, 0.1, 3, 0}
	x := ends[j/2%len(ends)]
	if j%2 == 1 {
		return -x
	}
	return x
}

// Cast converts to a dtype. Floats become integers by truncation, limited to the range (NaN is unspecified); integers
// become each other by wrapping. To 16-bit floats it rounds to the nearest, ties to even, beyond the largest to
// infinity (IEEE 754-2019, section 4.3.1), and keeps denormals; from 16-bit floats it is exact. Gradients pass through
// unchanged.
func Cast(x *graph.Value, d graph.DType) *graph.Value {
	if x.DType == d {
		return x
	}
	return graph.Apply1(&CastOp{To: d}, x)
}
