package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// TakeOp is x[index], rows of a table whose readers are known: x […] is [M, D], index u32 […] gives […, D]. The
// inverse, u32 [M, c], lists for each row of x the c positions of index that read it, each position once. So the
// gradient is a gather too: the sum of the c contributions in the order in which the inverse lists them. A number past
// the end reads the last row.
type TakeOp struct{}

func (*TakeOp) Name() string  { return "take" }
func (*TakeOp) TakesFloat16() {}

func (*TakeOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 3); err != nil {
		return nil, err
	}
	x, index, inverse := in[0], in[1], in[2]
	if err := wantFloat(0, x); err != nil {
		return nil, err
	}
	if len(x.Shape) != 2 || index.DType != graph.U32 {
		return nil, fmt.Errorf("inputs are %v and %v, expected rows [rows,width] and a u32 index", x, index)
	}
	if inverse.DType != graph.U32 || len(inverse.Shape) != 2 || inverse.Shape[0] != x.Shape[0] || inverse.Shape.Len() != index.Shape.Len() {
		return nil, fmt.Errorf("the inverse is %v, expected u32 with %d rows and %d elements, as many as the index has", inverse,
			x.Shape[0], index.Shape.Len())
	}
	return []graph.Type{{DType: x.DType, Shape: append(index.Shape.Clone(), x.Shape[1])}}, nil
}

func (*TakeOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	index, inverse := n.Inputs[1], n.Inputs[2]
	taken := Take(Reshape(d[0], index.Shape.Len(), lastExtent(d[0])), inverse, Reshape(index, index.Shape.Len(), 1))
	return []*graph.Value{Sum(taken, []int{1}, false), nil, nil}
}

func (*TakeOp) Kernel(n *graph.Node) graph.Kernel {
	rows := n.Inputs[0].Shape[0]
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		last := len(at) - 1
		return e.Input(0, []graph.Index{row(e, e.Input(1, at[:last]), rows), at[last]})
	}}
}

func (*TakeOp) Eval(in, out []*graph.Tensor) {
	rows, width := in[0].Shape[0], in[0].Shape[1]
	for i, row := range in[1].Data {
		copy(out[0].Data[i*width:(i+1)*width], in[0].Data[min(int(row), rows-1)*width:])
	}
}

func (*TakeOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct {
		d           graph.DType
		m, c, width int
		index       []int
	}{
		{graph.F32, 1, 1, 1, []int{1}}, {graph.F32, 7, 1, 5, []int{7}}, {graph.F32, 5, 3, 4, []int{15}}, {graph.F32, 12, 2, 3, []int{6, 4}},
		{graph.F32, 9, 8, 33, []int{72}}, {graph.BF16, 6, 2, 4, []int{12}}, {graph.F16, 5, 1, 3, []int{5}},
	} {
		// Position p reads row p·a % m, where a and the number of positions have no common divisor.
		const a = 1009
		index := func(p int) int { return p * a % (c.m * c.c) % c.m }
		var inverse []float64
		for row := range c.m {
			for p := range c.m * c.c {
				if index(p) == row {
					inverse = append(inverse, float64(p))
				}
			}
		}
		cs = append(cs, graph.Case{Op: new(TakeOp), Tolerance: exact, NoGrad: c.d.Float16(),
			Inputs: []graph.Type{graph.T(c.d, c.m, c.width), graph.T(graph.U32, c.index...), graph.T(graph.U32, c.m, c.c)},
			Fill: func(i, j int) float64 {
				switch i {
				case 0:
					return float64(j%17)/8 - 1
				case 1:
					return float64(index(j))
				}
				return inverse[j]
			}})
	}
	return append(cs, graph.Case{Op: new(TakeOp), NoGrad: true, Tolerance: exact, // numbers past the end
		Inputs: []graph.Type{graph.T(graph.F32, 3, 2), graph.T(graph.U32, 6), graph.T(graph.U32, 3, 2)},
		Fill:   func(_, j int) float64 { return float64(j) }})
}

// Take is x[index]: rows of x [M, D] by an index u32 […], as […, D]. The inverse, u32 [M, c], lists for each row of x
// the positions in the index that read it; the gradient adds their contributions in this order. See GroupRows.
func Take(x, index, inverse *graph.Value) *graph.Value {
	return graph.Apply1(new(TakeOp), x, index, inverse)
}
