package compute

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func (m *maker) f16(shape ...int) *graph.Value  { return m.c.input(graph.T(graph.F16, shape...)) }
func (m *maker) bf16(shape ...int) *graph.Value { return m.c.input(graph.T(graph.BF16, shape...)) }

func toF32(x *graph.Value) *graph.Value  { return op.Cast(x, graph.F32) }
func toF16(x *graph.Value) *graph.Value  { return op.Cast(x, graph.F16) }
func toBF16(x *graph.Value) *graph.Value { return op.Cast(x, graph.BF16) }

// mixedGraphs are hand-made graphs with 16-bit floats that are likely to expose errors.
func mixedGraphs() []Task {
	var ts []Task
	for _, n := range []int{1, 2, 31, 64 * 9} {
		ts = append(ts, exact(fmt.Sprint(n, " 16-bit values beside f32"), func(m *maker) {
			x, v := m.in(n), m.c.variableOf(graph.T(graph.BF16, n))
			y := op.Mul(x, toF32(v))
			m.Assign(v, toBF16(op.Scale(y, 0.25)))
			m.out(y, toF16(y), toBF16(y), v, op.Reshape(toF16(x), n, 1), op.Sum(toF32(toF16(y)), nil, false))
		}))
	}
	return append(ts,
		exact("rows of 16-bit values", func(m *maker) {
			for _, cols := range []int{33, 130} {
				x := m.f16(5, cols)
				d := op.Sub(toF32(x), op.ReduceMax(toF32(x), []int{1}, true))
				m.Output(fmt.Sprint("d", cols), toBF16(d))
				m.Output(fmt.Sprint("sum", cols), toF16(op.Sum(d, []int{1}, false)))
			}
			x := toF32(m.bf16(6, 5))
			m.out(toF16(op.Sub(x, op.ReduceMin(x, []int{0}, true))))
		}),
		exact("16-bit floats beside a reduction in place", func(m *maker) {
			v := m.v(70, 64)
			y := op.Sub(v, op.ReduceMax(v, []int{1}, true))
			m.Assign(v, op.Maximum(y, op.Scalar(m.Builder, graph.F32, -3)))
			m.out(toF16(y))
		}),
		exact("slices of 16-bit values", func(m *maker) {
			x, v := m.bf16(1001), m.c.variableOf(graph.T(graph.BF16, 600))
			for i, p := range [][2]int{{0, 1}, {0, 511}, {1, 2}, {3, 700}, {512, 1001}, {512, 513}, {128, 256}, {997, 1001}} {
				m.Output(fmt.Sprint("part", i), op.Slice(x, 0, p[0], p[1]))
			}
			m.Assign(v, op.Slice(x, 0, 401, 1001))
			m.out(op.Transpose(op.Reshape(op.Slice(x, 0, 1, 1000), 27, 37)), op.Concat(0, x, v, x, op.Slice(x, 0, 2, 4)), v)
		}),
		exact("16-bit floats are permuted", func(m *maker) {
			t := graph.T(graph.F16, 33)
			a, b := m.c.variableOf(t), m.c.variableOf(t)
			m.Assign(a, b)
			m.Assign(b, a)
			m.out(op.Concat(0, a, b))
		}),
		exact("constants of 16 bits and single elements", func(m *maker) {
			k := m.Constant("k", graph.T(graph.F16, 3), []float64{1, 0.1, -70000})
			one := toF16(m.in())
			m.out(k, toF32(k), one, op.Broadcast(one, 5), op.Mul(m.in(7), toF32(one)))
		}),
		exact("products of 16-bit values", func(m *maker) {
			for _, n := range []int{7, 12} {
				x, w := m.f16(n, n), m.bf16(2, n, n)
				sum := op.Add(op.MatMul(x, x, false, n == 7), toF32(x))
				y := toBF16(op.Clamp(sum, -8, 8))
				m.Output(fmt.Sprint("sum", n), sum)
				m.Output(fmt.Sprint("y", n), y)
				m.Output(fmt.Sprint("negated", n), toBF16(op.Neg(op.Clamp(sum, -8, 8)))) // another of 16 bits
				m.Output(fmt.Sprint("z", n), toF16(op.Sub(op.MatMul(w, y, false, true), toF32(w))))
			}
		}),
		exact("product of slices of 16-bit values", func(m *maker) {
			x := m.bf16(192, 64)
			a, b := op.Slice(x, 0, 0, 128), op.Slice(x, 0, 64, 192)
			m.out(op.MatMul(a, b, true, false), op.MatMul(op.Slice(x, 0, 0, 64), op.Slice(x, 0, 128, 192), false, false))
		}),
	)
}
