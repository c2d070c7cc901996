package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// soapSides are the names of the state of either side in the optimizer and in the reference.
var soapSides = [2]struct{ precond, basis, l, q string }{
	{"precond_left", "basis_left", "L", "QL"}, {"precond_right", "basis_right", "R", "QR"},
}

// oneLayer keeps one layer of testParams: software adapters take long to compile SOAP's many kernels.
func oneLayer(params []Param) []Param {
	return slices.DeleteFunc(params, func(p Param) bool { return strings.HasPrefix(p.Layer, "layers.") && p.Layer != "layers.1" })
}

// With both sides of matrices that are not square, from preconditioners of full rank, whose bases are unique.
func TestSOAPOnBothSides(t *testing.T) {
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		cfg, params := testConfigs()["soap"], oneLayer(testParams())
		c := cfg.Algorithm.(*SOAP)
		c.MaxPrecondDim, c.PreconditionFrequency = 20, 3
		o, m := start(t, cfg, params, on)
		ref := newReference(cfg, params, randomTensors(params, -1))
		r := rand.New(rand.NewPCG(5, 5))
		for _, p := range params {
			for side, s := range soapSides {
				if p.Matrix {
					l := definite(r, p.Type.Shape[side])
					q := eigenvectors(l)
					m.set(stateName(s.precond, p.Name), l.RawMatrix().Data)
					m.set(stateName(s.basis, p.Name), q.RawMatrix().Data)
					ref.kept[s.l+" "+p.Name], ref.kept[s.q+" "+p.Name] = l, q
				}
			}
		}
		for step := 1; step < 8; step++ {
			gradients := randomTensors(params, step)
			for _, p := range params {
				m.set(p.Gradient, gradients[p.Name])
			}
			run(m, o, step)
			ref.step(step, o.cfg.Schedule.Factor(step), gradients)
			for _, p := range params {
				compare(t, fmt.Sprintf("step %d: %s", step, p.Name), ref.newest(p.Name).RawMatrix().Data, m.get(p.Name), tolerance)
			}
		}
	})
}

// definite is a random symmetric matrix of f32 numbers whose eigenvalues are well apart.
func definite(r *rand.Rand, n int) *mat.Dense {
	a := mat.NewDense(n, n, nil)
	a.Apply(func(_, _ int, _ float64) float64 { return r.NormFloat64() }, a)
	var qr mat.QR
	var q, l mat.Dense
	qr.Factorize(a)
	qr.QTo(&q)
	a.Apply(func(_, j int, x float64) float64 { return x * float64(j+1) / float64(n) }, &q)
	l.Mul(a, q.T())
	rounded(&l)
	for i := range n {
		for j := range i {
			l.Set(j, i, l.At(i, j))
		}
	}
	return &l
}

func rounded(a *mat.Dense) {
	a.Apply(func(_, _ int, x float64) float64 { return float64(float32(x)) }, a)
}

// From nothing, the first basis is one that diagonalises, and every later one is orthonormal: also of a side on which
// the gradients so far have not full rank.
func TestSOAPBases(t *testing.T) {
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		cfg, params := testConfigs()["soap"], oneLayer(testParams())
		c := cfg.Algorithm.(*SOAP)
		c.MaxPrecondDim, c.PreconditionFrequency = 20, 2
		o, m := start(t, cfg, params, on)
		before := bits(m, o)
		for step := range 6 {
			gradients := randomTensors(params, step)
			for _, p := range params {
				m.set(p.Gradient, gradients[p.Name])
			}
			_, ok := run(m, o, step)
			require.True(t, ok)
			for _, p := range params {
				if !p.Matrix {
					continue
				}
				for side, s := range soapSides {
					n := p.Type.Shape[side]
					l := mat.NewDense(n, n, m.get(stateName(s.precond, p.Name)))
					q := mat.NewDense(n, n, m.get(stateName(s.basis, p.Name)))
					assert.Less(t, offDiagonal(q, nil), 1e-6, "step %d: %s %s", step, p.Name, s.basis)
					if step == 0 {
						assert.Less(t, offDiagonal(q, l)/mat.Norm(l, 2), 1e-6, "%s %s", p.Name, s.basis)
					}
				}
				x := m.get(p.Name)
				if step == 0 {
					assert.Equal(t, before[p.Name], patterns(x), "the first step leaves %s", p.Name)
				} else {
					assert.NotEqual(t, before[p.Name], patterns(x), p.Name)
				}
				assert.False(t, math.IsNaN(floats.Sum(x)), p.Name)
			}
		}
	})
}

// offDiagonal is the largest element of QᵀAQ beside the diagonal, or of QᵀQ − I without A.
func offDiagonal(q, a *mat.Dense) (most float64) {
	n, _ := q.Dims()
	d := mat.DenseCopyOf(q)
	if a != nil {
		d.Mul(a, q)
	}
	d.Mul(q.T(), mat.DenseCopyOf(d))
	for i := range n {
		for j := range n {
			switch {
			case i != j:
				most = max(most, math.Abs(d.At(i, j)))
			case a == nil:
				most = max(most, math.Abs(d.At(i, i)-1))
			}
		}
	}
	return most
}

func TestSOAPLeavesTheRestToAdamW(t *testing.T) {
	cfg := testConfigs()["soap"]
	c := cfg.Algorithm.(*SOAP)
	c.MaxPrecondDim = 7
	o, err := New(cfg, testParams())
	require.NoError(t, err)
	for _, l := range o.Assignment() {
		assert.Equal(t, "adamw", l.Rule, "both sides of %s are too long", l.Param)
		assert.Equal(t, c.AdamW.LR, l.LR, l.Param)
	}
	c.MaxPrecondDim = 8
	o, err = New(cfg, testParams())
	require.NoError(t, err)
	for i, l := range o.Assignment() {
		assert.Equal(t, testParams()[i].Matrix, l.Rule == "soap", l.Param)
	}
	assert.Equal(t, []int{soapInitialize, soapStep, soapStep, soapStep, soapRenew, soapStep, soapInitialize}, []int{
		o.Variant(0, false), o.Variant(1, true), o.Variant(2, true), o.Variant(3, true), o.Variant(4, true), o.Variant(5, true),
		o.Variant(5, false)})
}
