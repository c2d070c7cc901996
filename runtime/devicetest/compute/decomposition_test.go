package compute_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
)

// difficult are symmetric matrices of one size whose eigenvectors are not unique, or hard to find.
func difficult(n int) map[string]*mat.Dense {
	r := rand.New(rand.NewPCG(3, uint64(n)))
	gram := func(cols int, scale func(row int) float64) *mat.Dense {
		g := mat.NewDense(n, cols, nil)
		g.Apply(func(i, _ int, _ float64) float64 { return scale(i) * r.NormFloat64() }, g)
		a := mat.NewDense(n, n, nil)
		a.Mul(g, g.T())
		return a
	}
	one := func(int) float64 { return 1 }
	diagonal := func(f func(i int) float64) *mat.Dense {
		a := mat.NewDense(n, n, nil)
		for i := range n {
			a.Set(i, i, f(i))
		}
		return a
	}
	indefinite := mat.NewDense(n, n, nil)
	indefinite.Sub(gram(n, one), gram(n, one))
	infinite := diagonal(one)
	infinite.Set(n-1, 0, math.Inf(1))
	return map[string]*mat.Dense{
		"full rank":    gram(2*n, one),
		"rank third":   gram(n/3, one),
		"rank one":     gram(1, one),
		"indefinite":   indefinite,
		"graded":       gram(n, func(i int) float64 { return math.Pow(10, -12*float64(i)/float64(n)) }),
		"graded up":    gram(n, func(i int) float64 { return math.Pow(10, 12*float64(i)/float64(n)-12) }),
		"tiny":         gram(n, func(int) float64 { return 1e-15 }),
		"huge":         gram(n, func(int) float64 { return 1e15 }),
		"zero":         diagonal(func(int) float64 { return 0 }),
		"identity":     diagonal(one),
		"two clusters": diagonal(func(i int) float64 { return float64(1 + i%2) }),
		"infinite":     infinite,
	}
}

// decompose runs an op on one matrix.
func decompose(t *testing.T, dev device.Device, in map[string]*mat.Dense, n int,
	f func(x *graph.Value) []*graph.Value) map[string][]*mat.Dense {
	g, err := graph.Build(func(b *graph.Builder) {
		for name := range in {
			for i, y := range f(b.Input(name, graph.T(graph.F32, n, n))) {
				b.Output(name+string(rune('0'+i)), y)
			}
		}
	})
	require.NoError(t, err)
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": g}, exec.Options{})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	defer s.Close()
	for name, a := range in {
		a.Apply(func(_, _ int, x float64) float64 { return float64(float32(x)) }, a)
		require.NoError(t, s.SetInput("p", name, exec.Encode(graph.F32, a.RawMatrix().Data)))
	}
	require.NoError(t, s.Run("p"))
	out := map[string][]*mat.Dense{}
	for _, o := range g.Outputs {
		read, err := s.Output("p", o.Name)
		require.NoError(t, err)
		data, err := read.Wait()
		require.NoError(t, err)
		name := o.Name[:len(o.Name)-1]
		out[name] = append(out[name], mat.NewDense(n, o.Value.Shape.Len()/n, exec.Decode(graph.F32, data)))
	}
	return out
}

// largest is the largest magnitude of an element, NaN if any is.
func largest(a mat.Matrix) float64 {
	rows, cols := a.Dims()
	m := 0.0
	for i := range rows {
		for j := range cols {
			m = math.Max(m, math.Abs(a.At(i, j)))
		}
	}
	return m
}

// deviation is the largest element of QᵀQ − I.
func deviation(q *mat.Dense) float64 {
	n, _ := q.Dims()
	var d mat.Dense
	d.Mul(q.T(), q)
	for i := range n {
		d.Set(i, i, d.At(i, i)-1)
	}
	return largest(&d)
}

// Eigenvectors that are not unique are still orthonormal eigenvectors.
func TestEighOfDifficultMatrices(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.TranslatedToCompute(t)
	for _, n := range []int{4, 50, 200} {
		in := difficult(n)
		for name, out := range decompose(t, dev, in, n, func(x *graph.Value) []*graph.Value {
			values, vectors := op.Eigh(x)
			return []*graph.Value{values, vectors}
		}) {
			values, v := out[0], out[1]
			if name == "infinite" {
				assert.Less(t, deviation(v), 5e-6, "%d, %s: orthogonality", n, name)
				assert.Equal(t, 0.0, largest(values), "%d, %s", n, name)
				continue
			}
			eigenvectors(t, in[name], values, v, n, name)
		}
	}
}

// eigenvectors checks a decomposition of a; which one it is says what.
func eigenvectors(t *testing.T, a, values, v *mat.Dense, what ...any) {
	t.Helper()
	n, _ := a.Dims()
	assert.Less(t, deviation(v), 5e-6, "%v: orthogonality", what)
	for i := range n - 1 {
		assert.GreaterOrEqual(t, values.At(i, 0), values.At(i+1, 0), "%v: order", what)
	}
	var av, vl mat.Dense
	av.Mul(a, v)
	vl.Mul(v, mat.NewDiagDense(n, values.RawMatrix().Data))
	av.Sub(&av, &vl)
	assert.LessOrEqual(t, largest(&av), 2e-6*mat.Norm(a, 2), "%v: residual", what)
}

// TestDecompositionsForGPUs computes with the workgroups of GPUs, which are larger than those of software adapters
// where matrices are.
func TestDecompositionsForGPUs(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.TranslatedToCompute(t)
	const n = 270
	in := map[string]*mat.Dense{"full rank": difficult(n)["full rank"]}
	out := decompose(t, hardware{dev}, in, n, func(x *graph.Value) []*graph.Value {
		values, vectors := op.Eigh(x)
		return []*graph.Value{values, vectors, op.QR(x)}
	})["full rank"]
	eigenvectors(t, in["full rank"], out[0], out[1])
	triangular(t, in["full rank"], out[2])
}

// For a matrix without full rank, Q is still orthonormal and R triangular.
func TestQROfDifficultMatrices(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.TranslatedToCompute(t)
	for _, n := range []int{4, 50, 200} {
		in := difficult(n)
		delete(in, "infinite")
		for name, out := range decompose(t, dev, in, n, func(x *graph.Value) []*graph.Value { return []*graph.Value{op.QR(x)} }) {
			triangular(t, in[name], out[0], n, name)
		}
	}
}

// triangular checks that q is orthonormal, and takes a to a triangular matrix.
func triangular(t *testing.T, a, q *mat.Dense, what ...any) {
	t.Helper()
	n, _ := a.Dims()
	assert.Less(t, deviation(q), 5e-6, "%v: orthogonality", what)
	var r mat.Dense
	r.Mul(q.T(), a)
	limit := 2e-6 * mat.Norm(a, 2)
	for i := range n {
		for j := range i {
			assert.LessOrEqual(t, math.Abs(r.At(i, j)), limit, "%v: element (%d, %d) of R", what, i, j)
		}
		assert.GreaterOrEqual(t, r.At(i, i), -limit, "%v: diagonal of R", what)
	}
}
