package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"gonum.org/v1/gonum/blas/blas64"
)

func groupedProducts() []graph.Op {
	return []graph.Op{new(GroupedMatMulOp), new(GroupedMatMulReduceOp)}
}

// GroupedMatMulOp multiplies each row of x by the matrix of its expert. Inputs are x [R, K], w [E, K, N], or [E, N, K]
// with Trans, and offsets u32 [E+1]; the result is f32 [R, N]. The rows of expert e are offsets[e] to offsets[e+1];
// offsets begin with 0, ascend and end with R, as the offsets of GroupRows do. The result of other offsets is not
// specified.
type GroupedMatMulOp struct {
	Trans bool `json:"trans"`
}

func (*GroupedMatMulOp) Name() string  { return "grouped_matmul" }
func (*GroupedMatMulOp) TakesFloat16() {}

func (o *GroupedMatMulOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := groupedOperands(in, 3); err != nil {
		return nil, err
	}
	x, w := in[0], in[1]
	k, n := matrix(w.Shape, o.Trans)
	if x.Shape[1] != k {
		return nil, fmt.Errorf("inputs are %v and %v (transposed: %v): inner extents %d and %d differ", x, w, o.Trans, x.Shape[1], k)
	}
	out := graph.T(graph.F32, x.Shape[0], n)
	return []graph.Type{out}, wantType("the offsets", in[2], graph.U32, w.Shape[0]+1)
}

// groupedOperands refuses operands that are not a matrix and one of the rank, of one float dtype, and offsets.
func groupedOperands(in []graph.Type, rank int) error {
	if err := graph.Arity(in, 3); err != nil {
		return err
	}
	for i, n := range []int{2, rank} {
		if err := wantFloat(i, in[i]); err != nil {
			return err
		}
		if len(in[i].Shape) != n {
			return fmt.Errorf("input %d is %v, expected %d axes", i, in[i], n)
		}
	}
	if in[0].DType != in[1].DType {
		return fmt.Errorf("inputs are %v and %v, expected one dtype", in[0], in[1])
	}
	return nil
}

func (o *GroupedMatMulOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Contraction{TransB: o.Trans, Groups: graph.GroupedRows}
}

func (o *GroupedMatMulOp) Eval(in, out []*graph.Tensor) {
	for e := range in[1].Shape[0] {
		if x, y := groupOf(in[0], in[2], e), groupOf(out[0], in[2], e); x.Rows > 0 {
			blas64.Gemm(transpose(false), transpose(o.Trans), 1, x, general(in[1], e), 0, y)
		}
	}
}

// groupOf is the rows of an expert.
func groupOf(t, offsets *graph.Tensor, e int) blas64.General {
	rows, width := t.Shape[0], t.Shape[1]
	begin := min(int(offsets.Data[e]), rows)
	end := max(begin, min(int(offsets.Data[e+1]), rows))
	return blas64.General{Rows: end - begin, Cols: width, Stride: width, Data: t.Data[begin*width : end*width]}
}

// Grad rounds the gradient to the operands' dtype, so that its products are of the same kind.
func (o *GroupedMatMulOp) Grad(n *graph.Node, douts []*graph.Value) []*graph.Value {
	x, w, offsets := n.Inputs[0], n.Inputs[1], n.Inputs[2]
	d := Cast(douts[0], x.DType)
	dw := GroupedMatMulReduce(x, d, offsets)
	if o.Trans {
		dw = GroupedMatMulReduce(d, x, offsets)
	}
	return []*graph.Value{GroupedMatMul(d, w, offsets, !o.Trans), dw, nil}
}

func (*GroupedMatMulOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, trans := range []bool{false, true} {
		for _, c := range groupedShapes {
			cs = append(cs, c.of(&GroupedMatMulOp{trans}, append(graph.Shape{len(c.rows)}, order(c.k, c.n, trans)...)))
		}
	}
	return cs
}

// GroupedMatMul multiplies each row of x [R, K] by the matrix of its expert, w [E, K, N], or [E, N, K] with trans. The
// rows of expert e are offsets[e] to offsets[e+1] (u32 [E+1]; see GroupRows). Both operands are of one dtype, f32 or
// 16-bit floats; the result [R, N] is f32.
func GroupedMatMul(x, w, offsets *graph.Value, trans bool) *graph.Value {
	return graph.Apply1(&GroupedMatMulOp{trans}, x, w, offsets)
}

// GroupedMatMulReduceOp is the product aᵀ·b of each expert's rows: inputs a [R, M], b [R, N] and offsets u32 [E+1] give
// f32 [E, M, N], the gradient of the matrices of GroupedMatMulOp. An expert without rows has zeros. The sum over rows
// ascends.
type GroupedMatMulReduceOp struct{}

func (*GroupedMatMulReduceOp) Name() string  { return "grouped_matmul_reduce" }
func (*GroupedMatMulReduceOp) TakesFloat16() {}

func (*GroupedMatMulReduceOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := groupedOperands(in, 2); err != nil {
		return nil, err
	}
	a, b, offsets := in[0], in[1], in[2]
	if a.Shape[0] != b.Shape[0] {
		return nil, fmt.Errorf("inputs are %v and %v, expected equal numbers of rows", a, b)
	}
	if offsets.DType != graph.U32 || len(offsets.Shape) != 1 || offsets.Shape[0] < 2 {
		return nil, fmt.Errorf("the offsets are %v, expected u32[experts+1]", offsets)
	}
	return []graph.Type{graph.T(graph.F32, offsets.Shape[0]-1, a.Shape[1], b.Shape[1])}, nil
}

func (*GroupedMatMulReduceOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Contraction{TransA: true, Groups: graph.GroupedSums}
}

func (*GroupedMatMulReduceOp) Eval(in, out []*graph.Tensor) {
	for e := range out[0].Shape[0] {
		if a, b := groupOf(in[0], in[2], e), groupOf(in[1], in[2], e); a.Rows > 0 {
			blas64.Gemm(transpose(true), transpose(false), 1, a, b, 0, general(out[0], e))
		}
	}
}

func (*GroupedMatMulReduceOp) Grad(n *graph.Node, douts []*graph.Value) []*graph.Value {
	a, b, offsets := n.Inputs[0], n.Inputs[1], n.Inputs[2]
	d := Cast(douts[0], a.DType)
	return []*graph.Value{GroupedMatMul(b, d, offsets, true), GroupedMatMul(a, d, offsets, false), nil}
}

func (*GroupedMatMulReduceOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range groupedShapes {
		r := c.total()
		k := c.of(new(GroupedMatMulReduceOp), graph.Shape{r, c.n})
		cs = append(cs, k)
	}
	return cs
}

// GroupedMatMulReduce is aᵀ·b of the rows of each expert: a [R, M] and b [R, N], of one dtype, and offsets u32 [E+1]
// give f32 [E, M, N]. An expert without rows has zeros.
func GroupedMatMulReduce(a, b, offsets *graph.Value) *graph.Value {
	return graph.Apply1(new(GroupedMatMulReduceOp), a, b, offsets)
}

// groupedShape is the shape of a case: the rows of each expert, and the columns of both operands.
type groupedShape struct {
	rows []int
	k, n int
	d    graph.DType
}

// groupedShapes have experts without rows, one expert with all of them, and about as many rows as a tile has.
var groupedShapes = []groupedShape{
	{[]int{1}, 1, 1, graph.F32}, {[]int{5, 0, 3, 1}, 7, 6, graph.F32}, {[]int{0, 0, 40}, 9, 20, graph.F32},
	{[]int{33, 0, 0}, 20, 3, graph.F32},
	{[]int{31, 32, 33, 0, 1, 63, 64, 65}, 17, 36, graph.F32}, {[]int{23, 24, 25, 0, 11, 12, 13}, 33, 66, graph.F32},
	{[]int{70}, 65, 67, graph.F32}, {[]int{130, 2, 127}, 40, 130, graph.F32},
	{[]int{9, 0, 6}, 8, 12, graph.F16}, {[]int{2, 35, 0, 1}, 24, 16, graph.BF16}, {[]int{16, 17, 15}, 33, 36, graph.BF16},
	{[]int{3, 4}, 5, 7, graph.F16},
}

func (c groupedShape) total() (r int) {
	for _, n := range c.rows {
		r += n
	}
	return r
}

// of is the case of an op whose first operand has k columns, and whose second has the shape. The gradient of 16-bit
// floats rounds, so central differences cannot check it.
func (c groupedShape) of(o graph.Op, second graph.Shape) graph.Case {
	offsets := []float64{0}
	for _, n := range c.rows {
		offsets = append(offsets, offsets[len(offsets)-1]+float64(n))
	}
	in := []graph.Type{graph.T(c.d, c.total(), c.k), {DType: c.d, Shape: second}, graph.T(graph.U32, len(offsets))}
	return graph.Case{Op: o, Inputs: in, Tolerance: 1e-5, NoGrad: c.d.Float16(), Fill: func(i, j int) float64 {
		if i == 2 {
			return offsets[j]
		}
		return float64((j*7919+i*31)%401)/100 - 2
	}}
}
