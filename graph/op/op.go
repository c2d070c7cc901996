// Package op is the catalogue of ops. Each file holds an op or a family of ops: the type with its shape rule, gradient,
// kernel, reference and test cases, which implements graph.Op and which the file format stores, and the function that
// adds it to a graph.
//
// Graphs are written with the functions. Binary functions broadcast as NumPy does. An invalid argument stops
// graph.Build with an error that names the op and the scope. The tests of this package run every case of every
// registered op: shape, value, gradient against central differences, and the text of elementwise kernels;
// runtime/devicetest/compute runs the same cases on devices.
package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// pointwise describes an op without attributes that computes each element from the elements of its inputs, all of one
// type, at the same place.
type pointwise struct {
	name      string
	inputs    int
	accept    func(graph.DType) bool // nil: floats only
	predicate bool                   // the result is u32, 0 or 1
	emit      func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr
	eval      func(d graph.DType, a []float64) float64
	grad      func(n *graph.Node, d *graph.Value) []*graph.Value // nil: no gradient

	low, high, tolerance float64 // of the cases
}

func (p *pointwise) Name() string { return p.name }

func (p *pointwise) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := sameType(in, p.inputs); err != nil {
		return nil, err
	}
	if !p.accepts(in[0].DType) {
		return nil, fmt.Errorf("input is %v: %s is not defined for %v", in[0], p.name, in[0].DType)
	}
	out := in[0]
	if p.predicate {
		out.DType = graph.U32
	}
	return []graph.Type{out}, nil
}

func (p *pointwise) accepts(d graph.DType) bool {
	if p.accept == nil {
		return d.Float()
	}
	return p.accept(d)
}

func (p *pointwise) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	if p.grad == nil {
		return make([]*graph.Value, p.inputs)
	}
	return p.grad(n, d[0])
}

func (p *pointwise) Kernel(*graph.Node) graph.Kernel { return graph.Pointwise(p.inputs, p.emit) }

func (p *pointwise) Eval(in, out []*graph.Tensor) {
	a := make([]float64, p.inputs)
	for i := range out[0].Data {
		for j := range a {
			a[j] = in[j].Data[i]
		}
		out[0].Data[i] = p.eval(in[0].DType, a)
	}
}

func (p *pointwise) Cases() []graph.Case {
	var cs []graph.Case
	for _, d := range []graph.DType{graph.F32, graph.I32, graph.U32} {
		shapes := []graph.Shape{{33}, {2, 3}, {}}
		switch {
		case !p.accepts(d):
			continue
		case d == graph.F32:
			shapes = []graph.Shape{{}, {1}, {7}, {64}, {3, 5}, {2, 3, 4}, {2, 1, 3, 1, 5}, {70001}}
		}
		for _, s := range shapes {
			c := graph.Case{
				Op: p, Low: p.low, High: p.high, Tolerance: p.tolerance,
				NoGrad: p.grad == nil || !d.Float(), Fill: wideIntegers(d),
			}
			for range p.inputs {
				c.Inputs = append(c.Inputs, graph.Type{DType: d, Shape: s})
			}
			cs = append(cs, c)
		}
	}
	return cs
}

// wideIntegers fills with values at the ends of the integer range and about zero; it is nil for floats.
func wideIntegers(d graph.DType) func(i, j int) float64 {
	ends := []float64{0, 1, 2, 3, 7, 1 << 20, math.MaxInt32}
	switch d {
	case graph.I32:
		ends = append(ends, -1, -2, -5, -70000, math.MinInt32)
	case graph.U32:
		ends = append(ends, 1<<31, 4000000000, math.MaxUint32)
	default:
		return nil
	}
	return func(i, j int) float64 { return ends[(j*(2*i+1)+j/len(ends)+i)%len(ends)] }
}

// sameType refuses inputs that are not n values of one type.
func sameType(in []graph.Type, n int) error {
	if err := graph.Arity(in, n); err != nil {
		return err
	}
	for i, t := range in {
		if !t.Equal(in[0]) {
			return fmt.Errorf("input %d is %v, expected %v as input 0 is", i, t, in[0])
		}
	}
	return nil
}

// wantFloat refuses an input that cannot hold real numbers.
func wantFloat(i int, t graph.Type) error {
	if !t.DType.Float() {
		return fmt.Errorf("input %d is %v, expected a float type", i, t)
	}
	return nil
}

// wantType refuses an input of another type.
func wantType(what string, got graph.Type, d graph.DType, shape ...int) error {
	if want := graph.T(d, shape...); !got.Equal(want) {
		return fmt.Errorf("%s is %v, expected %v", what, got, want)
	}
	return nil
}

func anyDType(graph.DType) bool        { return true }
func signed(d graph.DType) bool        { return d != graph.U32 }
func isU32(d graph.DType) bool         { return d == graph.U32 }
func truth(b bool) float64             { return float64(boolToInt(b)) }
func leading(s graph.Shape) []int      { return firstAxes(len(s) - 1) }
func lastAxis(x *graph.Value) []int    { return []int{len(x.Shape) - 1} }
func lastExtent(x *graph.Value) int    { return x.Shape[len(x.Shape)-1] }
func half(x *graph.Value) *graph.Value { return Scale(x, 0.5) }

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// firstAxes is 0 … n-1.
func firstAxes(n int) []int {
	axes := make([]int, n)
	for i := range axes {
		axes[i] = i
	}
	return axes
}

// number is a number of a type. Infinities and NaN are bits of variables, since WGSL refuses constant expressions that
// are not finite.
func number(e graph.Emitter, t scalar.Type, v float64) *scalar.Expr {
	switch t {
	case scalar.U32:
		return scalar.U(uint32(v))
	case scalar.I32:
		return scalar.I(int32(v))
	}
	if f := float32(v); f-f != 0 {
		return e.Let(scalar.U(math.Float32bits(f))).As(scalar.F32)
	}
	return scalar.F(v)
}

// checkLiteral refuses a number that the dtype cannot hold.
func checkLiteral(d graph.DType, v float64) error {
	var low, high float64
	switch d {
	case graph.I32:
		low, high = math.MinInt32, math.MaxInt32
	case graph.U32:
		low, high = 0, math.MaxUint32
	default:
		return nil
	}
	if v < low || v > high || v != math.Trunc(v) {
		return fmt.Errorf("%v is not a value of %v", graph.Real(v), d)
	}
	return nil
}

// integer applies f to whole numbers with the wrapping of the dtype.
func integer(d graph.DType, x, y float64, f func(x, y int64) int64) float64 {
	return wrap(d, f(int64(x), int64(y)))
}

func wrap(d graph.DType, x int64) float64 {
	if d == graph.I32 {
		return float64(int32(x))
	}
	return float64(uint32(x))
}

// cases makes test cases of one op with float inputs of the shapes.
func cases(c graph.Case, inputs ...[]graph.Shape) []graph.Case {
	var cs []graph.Case
	for _, shapes := range inputs {
		k := c
		k.Inputs = nil
		for _, s := range shapes {
			k.Inputs = append(k.Inputs, graph.Type{DType: graph.F32, Shape: s})
		}
		cs = append(cs, k)
	}
	return cs
}
