package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
)

// EmbeddingOp picks rows of a table: inputs table [V,D] and ids u32[...], result [...,D] of the table's dtype. An id
// past the table picks its last row.
type EmbeddingOp struct{}

func (*EmbeddingOp) Name() string { return "embedding" }

// Embedding picks rows of table [V,D]: ids u32[...] → [...,D]. Ids are below V: the host checks them.
func Embedding(table, ids *graph.Value) *graph.Value {
	return graph.Apply1(new(EmbeddingOp), table, ids)
}

func (*EmbeddingOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	if !in[0].DType.Float() || len(in[0].Shape) != 2 {
		return nil, fmt.Errorf("table is %v, expected real numbers [vocabulary,width]", in[0])
	}
	if in[1].DType != graph.U32 {
		return nil, fmt.Errorf("ids are %v, expected u32", in[1])
	}
	return []graph.Type{{DType: in[0].DType, Shape: append(in[1].Shape.Clone(), in[0].Shape[1])}}, nil
}

func (*EmbeddingOp) Kernel(n *graph.Node) graph.Kernel {
	rows, width := n.Inputs[0].Shape[0], n.Inputs[0].Shape[1]
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) string {
		last := len(at) - 1
		id := e.Let("u32", fmt.Sprintf("min(%s, %du)", e.Input(1, at[:last]), rows-1))
		column := at[last]
		if width == 1 {
			column = graph.Const(0)
		}
		return e.Input(0, []graph.Index{graph.Var(id, rows), column})
	}}
}

func (*EmbeddingOp) Eval(in, out []*graph.Tensor) {
	v, d := in[0].Shape[0], in[0].Shape[1]
	for n, id := range in[1].Data {
		copy(out[0].Data[n*d:(n+1)*d], in[0].Data[min(int(id), v-1)*d:])
	}
}

func (*EmbeddingOp) Grad(n *graph.Node, dout []*graph.Value) []*graph.Value {
	op := &EmbeddingGradOp{Rows: n.Inputs[0].Shape[0]}
	return []*graph.Value{graph.Apply1(op, n.Inputs[1], dout[0]), nil}
}

func (*EmbeddingOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range embeddingCases() {
		cs = append(cs, graph.Case{Op: new(EmbeddingOp), Inputs: []graph.Type{graph.T(graph.F32, c.rows, c.width), {DType: graph.U32, Shape: c.ids}}, Fill: c.fill(1)})
	}
	return cs
}

type embeddingCase struct {
	rows, width int
	ids         graph.Shape
}

// embeddingCases have one id and many, repeated ids and unused rows, and widths with and without whole vectors.
func embeddingCases() []embeddingCase {
	return []embeddingCase{{1, 1, graph.Shape{1}}, {7, 5, graph.Shape{3}}, {40, 8, graph.Shape{2, 3}}, {11, 12, graph.Shape{5, 13}}, {300, 4, graph.Shape{130}}}
}

// fill spreads ids, which are input ids, over the rows unevenly.
func (c embeddingCase) fill(ids int) func(i, j int) float64 {
	return func(i, j int) float64 {
		if i == ids {
			x := (scatter(i, j) + 1) / 2
			return float64(int(x * x * float64(c.rows)))
		}
		return scatter(i, j)
	}
}

// EmbeddingGradOp sums gradients by id: inputs ids u32[...] and dout f32[...,D], result [Rows,D], whose row r is
// the sum in order of the rows of dout whose id is r.
type EmbeddingGradOp struct {
	Rows int `json:"rows"` // of the table
}

func (*EmbeddingGradOp) Name() string { return "embedding_grad" }

func (o *EmbeddingGradOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	n := len(in[1].Shape) - 1
	switch {
	case o.Rows < 1:
		return nil, fmt.Errorf("rows is %d, expected at least 1", o.Rows)
	case in[0].DType != graph.U32:
		return nil, fmt.Errorf("ids are %v, expected u32", in[0])
	case in[1].DType != graph.F32 || n < 0 || !in[0].Shape.Equal(in[1].Shape[:n]):
		return nil, fmt.Errorf("the gradient is %v, expected f32 %v and one dimension more", in[1], in[0].Shape)
	}
	return []graph.Type{graph.T(graph.F32, o.Rows, in[1].Shape[n])}, nil
}

// Grad picks rows, as the gradient is linear in dout.
func (*EmbeddingGradOp) Grad(n *graph.Node, dout []*graph.Value) []*graph.Value {
	return []*graph.Value{nil, Embedding(dout[0], n.Inputs[0])}
}

func (o *EmbeddingGradOp) Eval(in, out []*graph.Tensor) {
	d := out[0].Shape[1]
	clear(out[0].Data)
	for n, id := range in[0].Data {
		axpy(1, in[1].Data[n*d:(n+1)*d], out[0].Data[min(int(id), o.Rows-1)*d:][:d])
	}
}

func (o *EmbeddingGradOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range embeddingCases() {
		types := []graph.Type{{DType: graph.U32, Shape: c.ids}, graph.T(graph.F32, append(c.ids.Clone(), c.width)...)}
		cs = append(cs, graph.Case{Op: &EmbeddingGradOp{Rows: c.rows}, Inputs: types, Fill: c.fill(0)})
	}
	return cs
}

func (o *EmbeddingGradOp) Kernel(n *graph.Node) graph.Kernel {
	k := embeddingGradKernels{rows: o.Rows, ids: n.Inputs[0].Shape.Len(), width: n.Outputs[0].Shape[1]}
	return graph.Template{Candidates: k.candidates}
}

func init() {
	graph.Register(func() graph.Op { return new(EmbeddingOp) })
	graph.Register(func() graph.Op { return new(EmbeddingGradOp) })
}
