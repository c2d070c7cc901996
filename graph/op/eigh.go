package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/mat"
)

// EighOp computes the eigendecomposition A = V·diag(λ)·Vᵀ of each symmetric matrix of f32 [..., n, n]. It reads the
// lower triangle only. The results are the eigenvalues [..., n], the largest first, and the eigenvectors [..., n, n],
// where column i belongs to eigenvalue i. The element of the largest magnitude of each eigenvector is positive. A
// matrix with an infinity or NaN is treated as zero, and so may be a matrix whose elements are all below 1e-37.
type EighOp struct{}

func (*EighOp) Name() string { return "eigh" }

func (*EighOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	s := in[0].Shape
	if in[0].DType != graph.F32 || len(s) < 2 || s[len(s)-1] != s[len(s)-2] {
		return nil, fmt.Errorf("input 0 is %v, expected f32[..., n, n]", in[0])
	}
	return []graph.Type{{DType: graph.F32, Shape: s[:len(s)-1]}, in[0]}, nil
}

// Grad returns no gradient: decompositions are not differentiable here.
func (*EighOp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return make([]*graph.Value, 1) }

func (*EighOp) Eval(in, out []*graph.Tensor) {
	n := in[0].Shape[len(in[0].Shape)-1]
	for i := range in[0].Shape.Len() / (n * n) {
		a, v := dense(in[0], i), dense(out[1], i)
		finite := true
		s := mat.NewSymDense(n, nil)
		for r := range n {
			for c := range r + 1 {
				s.SetSym(r, c, a.At(r, c))
				finite = finite && !math.IsNaN(a.At(r, c)) && !math.IsInf(a.At(r, c), 0)
			}
		}
		if !finite {
			s.Zero()
		}
		var e mat.EigenSym
		if !e.Factorize(s, true) {
			panic("op: eigh: gonum's decomposition of a finite matrix does not converge")
		}
		var ascending mat.Dense
		e.VectorsTo(&ascending)
		for j, x := range e.Values(nil) {
			to := n - 1 - j
			column := mat.Col(nil, j, &ascending)
			if column[blas64.Iamax(blas64.Vector{N: n, Data: column, Inc: 1})] < 0 {
				blas64.Scal(-1, blas64.Vector{N: n, Data: column, Inc: 1})
			}
			out[0].Data[i*n+to] = x
			v.SetCol(to, column)
		}
	}
}

// Cases returns matrices whose eigenvalues are far apart and whose eigenvectors have a unique largest element. The
// results of other matrices depend on rounding.
func (*EighOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct {
		shape graph.Shape
		scale float64
	}{
		{graph.Shape{1, 1}, 1}, {graph.Shape{2, 2}, 1}, {graph.Shape{3, 3}, -1}, {graph.Shape{3, 8, 8}, 1e-12},
		{graph.Shape{2, 2, 33, 33}, 1}, {graph.Shape{65, 65}, 1e6}, {graph.Shape{140, 140}, 1},
	} {
		n := c.shape[len(c.shape)-1]
		a := spaced(n)
		cs = append(cs, graph.Case{
			Op: new(EighOp), Inputs: []graph.Type{{DType: graph.F32, Shape: c.shape}}, NoGrad: true, Tolerance: 2e-6 * float64(max(10, n)),
			Fill: func(_, j int) float64 {
				row, col := j%(n*n)/n, j%n
				if row < col {
					return math.NaN() // the op must not read the upper triangle
				}
				return c.scale * a.At(row, col)
			},
		})
	}
	return cs
}

// spaced returns a symmetric matrix with the eigenvalues 1, −(n−1)/n, (n−2)/n, … The matrix of its eigenvectors is a
// Householder reflection.
func spaced(n int) *mat.SymDense {
	v := mat.NewVecDense(n, nil)
	for i := range n {
		v.SetVec(i, 1+0.5*math.Sin(float64(i)*1.3))
	}
	q := mat.NewDense(n, n, nil)
	q.Outer(-2/mat.Dot(v, v), v, v)
	scaled := mat.NewDense(n, n, nil)
	for i := range n {
		q.Set(i, i, 1+q.At(i, i))
	}
	for i := range n {
		for j := range n {
			scaled.Set(i, j, q.At(i, j)*float64(n-j)/float64(n)*float64(1-2*(j%2)))
		}
	}
	var a mat.Dense
	a.Mul(scaled, q.T())
	s := mat.NewSymDense(n, nil)
	for i := range n {
		for j := range i + 1 {
			s.SetSym(i, j, a.At(i, j))
		}
	}
	return s
}

// Eigh returns the eigenvalues [..., n], the largest first, and the eigenvectors [..., n, n], as columns, of each
// symmetric matrix of x, f32 [..., n, n]. The element of the largest magnitude of each eigenvector is positive. Eigh
// has no gradient.
func Eigh(x *graph.Value) (values, vectors *graph.Value) {
	out := x.Builder().Apply(new(EighOp), x)
	return out[0], out[1]
}
