package op

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

// MatMulOp is a batched matrix product. An input with only two axes is shared over the batch. The sums and the result
// are f32, also of 16-bit floats.
type MatMulOp struct {
	TransA    bool `json:"trans_a"`
	TransB    bool `json:"trans_b"`
	Symmetric bool `json:"symmetric,omitempty"` // the product equals its transpose, but for rounding
}

func (*MatMulOp) Name() string  { return "matmul" }
func (*MatMulOp) TakesFloat16() {}

func (o *MatMulOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	a, b := in[0], in[1]
	for i, t := range in {
		if err := wantFloat(i, t); err != nil {
			return nil, err
		}
		if len(t.Shape) < 2 {
			return nil, fmt.Errorf("input %d is %v, expected at least two axes", i, t)
		}
	}
	if a.DType != b.DType {
		return nil, fmt.Errorf("inputs are %v and %v, expected one dtype", a, b)
	}
	batchA, batchB := a.Shape[:len(a.Shape)-2], b.Shape[:len(b.Shape)-2]
	if len(batchA) > 0 && len(batchB) > 0 && !batchA.Equal(batchB) {
		return nil, fmt.Errorf("inputs are %v and %v, expected equal leading extents", a, b)
	}
	m, ka := matrix(a.Shape, o.TransA)
	kb, n := matrix(b.Shape, o.TransB)
	if ka != kb {
		return nil, fmt.Errorf("inputs are %v and %v (transposed: %v, %v): inner extents %d and %d differ", a, b, o.TransA, o.TransB, ka,
			kb)
	}
	if o.Symmetric && (o.TransA || o.TransB || m != n || !a.Shape.Equal(b.Shape)) {
		return nil, fmt.Errorf("inputs are %v and %v (transposed: %v, %v), expected square matrices of one shape for a symmetric product",
			a, b, o.TransA, o.TransB)
	}
	batch := batchA
	if len(batch) == 0 {
		batch = batchB
	}
	return []graph.Type{{DType: graph.F32, Shape: append(batch.Clone(), m, n)}}, nil
}

// matrix is the rows and columns of the last two axes after transposition.
func matrix(s graph.Shape, trans bool) (rows, cols int) {
	rows, cols = s[len(s)-2], s[len(s)-1]
	if trans {
		rows, cols = cols, rows
	}
	return rows, cols
}

func (o *MatMulOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Contraction{TransA: o.TransA, TransB: o.TransB, Symmetric: o.Symmetric}
}

func (o *MatMulOp) Eval(in, out []*graph.Tensor) {
	a, b, c := in[0], in[1], out[0]
	batch := c.Shape[:len(c.Shape)-2].Len()
	for i := range batch {
		blas64.Gemm(transpose(o.TransA), transpose(o.TransB), 1, general(a, i), general(b, i), 0, general(c, i))
	}
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}

// general is the i-th matrix of the tensor; a tensor of one matrix has it everywhere.
func general(t *graph.Tensor, i int) blas64.General {
	rows, cols := matrix(t.Shape, false)
	if len(t.Shape) == 2 {
		i = 0
	}
	return blas64.General{Rows: rows, Cols: cols, Stride: cols, Data: t.Data[i*rows*cols : (i+1)*rows*cols]}
}

// Grad rounds the gradient to the operands' dtype, so that its products are of the same kind.
func (o *MatMulOp) Grad(n *graph.Node, douts []*graph.Value) []*graph.Value {
	a, b := n.Inputs[0], n.Inputs[1]
	d := Cast(douts[0], a.DType)
	var da, db *graph.Value
	if o.TransA {
		da = MatMul(b, d, o.TransB, true)
	} else {
		da = MatMul(d, b, false, !o.TransB)
	}
	if o.TransB {
		db = MatMul(d, a, true, o.TransA)
	} else {
		db = MatMul(a, d, !o.TransA, false)
	}
	return []*graph.Value{unshare(da, a), unshare(db, b)}
}

// unshare adds up over the batch the gradient of an input that it shares.
func unshare(d, x *graph.Value) *graph.Value {
	return Sum(d, firstAxes(len(d.Shape)-len(x.Shape)), false)
}

func (*MatMulOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, ta := range []bool{false, true} {
		for _, tb := range []bool{false, true} {
			o := &MatMulOp{TransA: ta, TransB: tb}
			for _, c := range []struct {
				a, b    graph.Shape
				m, k, n int
			}{
				{nil, nil, 1, 1, 1}, {nil, nil, 3, 5, 7}, {nil, nil, 17, 1, 4}, {nil, nil, 1, 33, 1}, {nil, nil, 65, 67, 35},
				{graph.Shape{3}, graph.Shape{3}, 4, 5, 6}, {graph.Shape{2, 3}, graph.Shape{2, 3}, 9, 2, 5},
				{graph.Shape{3}, nil, 4, 5, 6}, {nil, graph.Shape{2, 2}, 4, 3, 5},
			} {
				cs = append(cs, cases(graph.Case{Op: o, Tolerance: 1e-5}, []graph.Shape{
					append(c.a.Clone(), order(c.m, c.k, ta)...), append(c.b.Clone(), order(c.k, c.n, tb)...),
				})...)
			}
		}
	}
	cs = append(cs, cases(graph.Case{Op: new(MatMulOp), Tolerance: 1e-5}, [][]graph.Shape{
		{{128, 130}, {130, 140}}, {{257, 64}, {64, 260}},
	}...)...)
	return slices.Concat(cs, symmetricMatMuls(), float16MatMuls())
}

// symmetricMatMuls multiply symmetric circulant matrices, which commute. NoGrad: central differences would break the
// symmetry.
func symmetricMatMuls() []graph.Case {
	var cs []graph.Case
	for _, s := range []graph.Shape{{3, 3}, {2, 33, 33}, {3, 70, 70}, {128, 128}} {
		n := s[len(s)-1]
		cs = append(cs, graph.Case{
			Op: &MatMulOp{Symmetric: true}, Tolerance: 1e-5, NoGrad: true, Inputs: []graph.Type{graph.T(graph.F32, s...),
				graph.T(graph.F32, s...)},
			Fill: func(input, j int) float64 {
				apart := max(j/n%n, j%n) - min(j/n%n, j%n)
				return math.Sin(float64(1 + 2*input + j/(n*n) + 3*min(apart, n-apart)))
			},
		})
	}
	return cs
}

// float16MatMuls have extents odd, even and divisible by four. The gradient rounds, so central differences cannot check
// it.
func float16MatMuls() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct {
		d       graph.DType
		o       MatMulOp
		batch   graph.Shape
		m, k, n int
	}{
		{graph.F16, MatMulOp{}, nil, 3, 5, 7}, {graph.BF16, MatMulOp{TransA: true, TransB: true}, nil, 1, 33, 2},
		{graph.BF16, MatMulOp{TransB: true}, graph.Shape{3}, 3, 5, 6}, {graph.F16, MatMulOp{TransA: true}, nil, 36, 24, 40},
	} {
		cs = append(cs, graph.Case{Op: &c.o, Tolerance: 1e-5, NoGrad: true, Inputs: []graph.Type{
			graph.T(c.d, append(c.batch.Clone(), order(c.m, c.k, c.o.TransA)...)...),
			graph.T(c.d, append(c.batch.Clone(), order(c.k, c.n, c.o.TransB)...)...),
		}})
	}
	return cs
}

func order(rows, cols int, trans bool) []int {
	if trans {
		return []int{cols, rows}
	}
	return []int{rows, cols}
}

// MatMul is the matrix product over the last two axes, [..., m, k] × [..., k, n], each transposed first if its flag is
// set. Leading extents are equal, or one side has two axes and is shared over the batch. Both are of one dtype, f32 or
// 16-bit floats; the result is f32.
func MatMul(a, b *graph.Value, transA, transB bool) *graph.Value {
	o := &MatMulOp{TransA: transA, TransB: transB}
	if len(b.Shape) == 2 && len(a.Shape) > 2 && !transA {
		// One large product is faster than many small ones, and so is its gradient.
		n := len(a.Shape)
		y := graph.Apply1(o, Reshape(a, -1, a.Shape[n-1]), b)
		return Reshape(y, append(a.Shape[:n-1].Clone(), y.Shape[1])...)
	}
	return graph.Apply1(o, a, b)
}

// SymmetricMatMul is MatMul of symmetric matrices [..., n, n] that commute, such as polynomials of one matrix. The
// product is symmetric too, but for rounding, so a device may compute half of it. For other operands the result depends
// on the device. The gradient is MatMul's.
func SymmetricMatMul(a, b *graph.Value) *graph.Value {
	return graph.Apply1(&MatMulOp{Symmetric: true}, a, b)
}
