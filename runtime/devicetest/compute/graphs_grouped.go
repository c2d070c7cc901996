package compute

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// groupedGraphs are mixtures of experts, with the gradients of all matrices. Some experts have no rows.
func groupedGraphs() []Task {
	return []Task{
		hand("experts", experts),
		exact("experts of 16 bits", func(m *maker) {
			x, w, offsets := op.Cast(m.in(24, 8), graph.BF16), op.Cast(m.in(3, 12, 8), graph.BF16), m.u32(4)
			m.c.task.Inputs[offsets.Node.Op.(graph.Source).Label()].Data = []float64{0, 5, 5, 24}
			y := op.GroupedMatMul(x, w, offsets, true)
			d := op.Cast(m.in(24, 12), graph.BF16)
			m.out(op.Cast(op.Cast(y, graph.BF16), graph.F32), op.GroupedMatMul(d, w, offsets, false), op.GroupedMatMulReduce(d, x, offsets))
		}),
	}
}

// experts is a layer of five experts of SwiGLU, two a token, and gradients that are added to variables.
func experts(m *maker) {
	const tokens, width, hidden, count, k = 37, 12, 20, 5, 2
	x := m.in(tokens, width)
	weights, ids := op.TopK(op.Slice(m.in(tokens, count+2), 1, 0, count), k)
	order, place, offsets := op.GroupRows(ids, count)
	rows := op.Take(x, op.Div(order, op.Scalar(m.Builder, graph.U32, k)), place)
	gate, up, down := m.v(count, hidden, width), m.v(count, hidden, width), m.v(count, width, hidden)
	a, b := op.GroupedMatMul(rows, gate, offsets, true), op.GroupedMatMul(rows, up, offsets, true)
	h := op.Mul(op.SiLU(a), b)
	y := op.Take(op.GroupedMatMul(h, down, offsets, true), place, op.Reshape(order, tokens*k, 1))
	out := []*graph.Value{ids, op.Scale(op.Sum(op.Mul(y, op.Reshape(weights, tokens, k, 1)), []int{1}, false), 1./16)}
	d := op.Scale(m.in(tokens*k, width), 1./16)
	for _, g := range []struct{ sum, d *graph.Value }{
		{m.v(count, width, hidden), op.GroupedMatMulReduce(d, h, offsets)},
		{m.v(count, hidden, width), op.GroupedMatMulReduce(op.Mul(op.GroupedMatMul(d, down, offsets, false), b), rows, offsets)},
	} {
		m.Assign(g.sum, op.Add(g.sum, op.Scale(g.d, 1./32)))
		out = append(out, g.sum)
	}
	m.out(out...)
}
