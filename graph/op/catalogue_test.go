package op_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// forEachCase runs f on each case of each computing op, in the core of the tests on one of each kind.
func forEachCase(t *testing.T, f func(t *testing.T, c graph.Case)) {
	forCases(t, func(graph.Case) bool { return true }, f)
}

// forCases runs f on each case that a test is about, in the core of the tests on one of each kind.
func forCases(t *testing.T, about func(c graph.Case) bool, f func(t *testing.T, c graph.Case)) {
	for _, o := range op.Catalogue() {
		cases := slices.DeleteFunc(slices.Clone(o.Cases()), func(c graph.Case) bool { return !about(c) })
		if len(cases) == 0 {
			continue
		}
		t.Run(o.Name(), func(t *testing.T) {
			t.Parallel()
			for i, c := range tier.Divide(t, cases, ofEachKind(t, cases)) {
				t.Run(fmt.Sprintf("%d%v", i, c.Inputs), func(t *testing.T) { f(t, c) })
			}
		})
	}
}

// ofEachKind chooses a case of each kind: the largest of moderate size, since the smallest are often trivial. Cases are
// of a kind if their op has the same attributes, and the inputs the same number, types and ranks.
func ofEachKind(t *testing.T, cases []graph.Case) func(i int, _ graph.Case) bool {
	const moderate = 4096 // elements
	type choice struct{ index, size int }
	byKind := map[string]choice{}
	for i, c := range cases {
		kind, err := json.Marshal(c.Op)
		require.NoError(t, err)
		size := 0
		for _, in := range c.Inputs {
			kind, size = fmt.Append(kind, " ", in.DType, len(in.Shape)), size+in.Shape.Len()
		}
		if best, ok := byKind[string(kind)]; !ok || size > best.size && size <= moderate {
			byKind[string(kind)] = choice{i, size}
		}
	}
	chosen := map[int]bool{}
	for _, c := range byKind {
		chosen[c.index] = true
	}
	return func(i int, _ graph.Case) bool { return chosen[i] }
}

func name(i int) string { return fmt.Sprintf("x%d", i) }

func declare(b *graph.Builder, c graph.Case) []*graph.Value {
	vs := make([]*graph.Value, len(c.Inputs))
	for i, t := range c.Inputs {
		vs[i] = b.Input(name(i), t)
	}
	return vs
}

func run(t *testing.T, g *graph.Graph, in []*graph.Tensor) map[string]*graph.Tensor {
	t.Helper()
	named := map[string]*graph.Tensor{}
	for i, x := range in {
		named[name(i)] = x
	}
	out, err := eval.Run(g, named, nil)
	require.NoError(t, err)
	return out
}

func TestEveryOpHasCases(t *testing.T) {
	for _, o := range op.Catalogue() {
		assert.GreaterOrEqual(t, len(o.Cases()), 3, o.Name())
	}
}

// The kernels that are other ops compute what the reference does, and all results are numbers of their type.
func TestExpansionIsReference(t *testing.T) {
	forEachCase(t, func(t *testing.T, c graph.Case) {
		g, err := graph.Build(func(b *graph.Builder) {
			direct := b.Apply(c.Op, declare(b, c)...)
			for i, v := range direct {
				b.Output(fmt.Sprintf("direct%d", i), v)
			}
			if k, ok := c.Op.Kernel(direct[0].Node).(graph.Expansion); ok {
				for i, v := range k.Expand(direct[0].Node.Inputs) {
					assert.True(t, v.Type.Equal(direct[i].Type), "expansion gives %v, expected %v", v.Type, direct[i].Type)
					b.Output(fmt.Sprintf("expanded%d", i), v)
				}
			}
		})
		require.NoError(t, err)
		out := run(t, g, c.Values(1))
		for i := range g.Outputs {
			want, got := out[fmt.Sprintf("direct%d", i)], out[fmt.Sprintf("expanded%d", i)]
			if want == nil {
				break
			}
			assertIntegral(t, want)
			if got != nil {
				assertClose(t, want.Data, got.Data, 1e-11)
			}
		}
	})
}

func assertIntegral(t *testing.T, x *graph.Tensor) {
	t.Helper()
	for _, v := range x.Data {
		switch x.DType {
		case graph.I32:
			require.Equal(t, float64(int32(v)), v)
		case graph.U32:
			require.Equal(t, float64(uint32(v)), v)
		}
	}
}

// assertClose bounds the largest difference relative to the largest magnitude, at least 1.
func assertClose(t *testing.T, want, got []float64, tolerance float64) {
	t.Helper()
	require.Len(t, got, len(want))
	scale := 1.0
	for _, x := range want {
		if !math.IsInf(x, 0) {
			scale = math.Max(scale, math.Abs(x))
		}
	}
	for i := range want {
		if want[i] == got[i] || math.IsNaN(want[i]) && math.IsNaN(got[i]) {
			continue
		}
		if !(math.Abs(want[i]-got[i]) <= tolerance*scale) {
			require.Fail(t, "values differ", "element %d is %v, expected %v within %v", i, got[i], want[i], tolerance*scale)
		}
	}
}

// fixed is implemented by ops with inputs that are float but take no gradient.
type fixed interface{ Fixed(input int) bool }

// Gradients agree with central differences of the reference, under a random projection of all results.
func TestGradients(t *testing.T) {
	forCases(t, func(c graph.Case) bool { return !c.NoGrad }, func(t *testing.T, c graph.Case) {
		var wrt []int
		for i, x := range c.Inputs {
			f, ok := c.Op.(fixed)
			if x.DType.Float() && !(ok && f.Fixed(i)) {
				wrt = append(wrt, i)
			}
		}
		require.NotEmpty(t, wrt, "the case has no input that takes a gradient")
		in := c.Values(2)
		g, projections := gradientGraph(t, c, wrt)
		grads := run(t, g, append(slices.Clone(in), projections...))
		r := rand.New(rand.NewPCG(3, 4))
		for _, i := range wrt {
			d := grads["d"+name(i)]
			require.NotNil(t, d, "input %d has no gradient", i)
			scale := 1.0
			for _, x := range d.Data {
				scale = math.Max(scale, math.Abs(x))
			}
			for range min(8, len(d.Data)) {
				j := r.IntN(len(d.Data))
				want := centralDifference(t, c.Op, in, projections, i, j)
				require.InDelta(t, want, d.Data[j], 1e-6*scale, "input %d, element %d", i, j)
			}
		}
	})
}

// gradientGraph computes the gradients of Σ float results·projections; the projections follow the case's inputs.
func gradientGraph(t *testing.T, c graph.Case, wrt []int) (g *graph.Graph, projections []*graph.Tensor) {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		xs := declare(b, c)
		total := op.Scalar(b, graph.F32, 0)
		for i, y := range b.Apply(c.Op, xs...) {
			if y.DType.Float() {
				p := b.Input(name(len(xs)+len(projections)), y.Type.Gradient())
				projections = append(projections, graph.Case{Inputs: []graph.Type{p.Type}}.Values(uint64(10 + i))[0])
				total = op.Add(total, op.Sum(op.Mul(op.Cast(y, graph.F32), p), nil, false))
			}
		}
		vs := make([]*graph.Value, len(wrt))
		for k, i := range wrt {
			vs[k] = xs[i]
		}
		for k, d := range autodiff.Gradients(total, nil, vs...) {
			if d != nil {
				b.Output("d"+name(wrt[k]), d)
			}
		}
	})
	require.NoError(t, err)
	return g, projections
}

// centralDifference is by element j of input i. It projects the differences of the results, of which no large sum
// hides the last digits.
func centralDifference(t *testing.T, o graph.Op, in, projections []*graph.Tensor, i, j int) float64 {
	t.Helper()
	const h = 1e-5
	x := in[i].Data[j]
	in[i].Data[j] = x + h
	high := evaluate(t, o, in)
	in[i].Data[j] = x - h
	low := evaluate(t, o, in)
	in[i].Data[j] = x
	sum, k := 0.0, 0
	for r := range high {
		if !high[r].DType.Float() {
			continue
		}
		for e, p := range projections[k].Data {
			sum += p * (high[r].Data[e] - low[r].Data[e])
		}
		k++
	}
	return sum / (2 * h)
}

// evaluate runs an op's reference.
func evaluate(t *testing.T, o graph.Op, in []*graph.Tensor) []*graph.Tensor {
	t.Helper()
	types := make([]graph.Type, len(in))
	for i, x := range in {
		types[i] = x.Type
	}
	outs, err := o.Infer(types)
	require.NoError(t, err)
	results := make([]*graph.Tensor, len(outs))
	for i, x := range outs {
		results[i] = graph.NewTensor(x)
	}
	o.Eval(in, results)
	return results
}
