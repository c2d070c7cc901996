package compute

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// maker builds one graph. Its inputs and variables get random numbers when they are declared.
type maker struct {
	*graph.Builder
	c *chain
}

func (m *maker) in(shape ...int) *graph.Value  { return m.c.input(graph.T(graph.F32, shape...)) }
func (m *maker) v(shape ...int) *graph.Value   { return m.c.variable(shape) }
func (m *maker) u32(shape ...int) *graph.Value { return m.c.input(graph.T(graph.U32, shape...)) }

func (m *maker) out(vs ...*graph.Value) {
	for i, v := range vs {
		m.Output(fmt.Sprint("y", i), v)
	}
}

func hand(name string, build func(m *maker)) Task {
	return (&chain{task: Task{Tolerance: 2e-5}}).made(name, build)
}

// exact is hand with quarters up to eight as numbers. Their sums and products are exact in f32, so device and reference
// round the same numbers to 16 bits, once.
func exact(name string, build func(m *maker)) Task {
	return (&chain{exact: true, task: Task{Tolerance: exactly}}).made(name, build)
}

func (c *chain) made(name string, build func(m *maker)) Task {
	c.r, c.prefix = rand.New(rand.NewPCG(1, 13)), name+"."
	c.task.Op, c.task.Name, c.task.Claim, c.task.Runs, c.task.Floor = "graph", name, name, 2, 1
	c.task.Inputs, c.task.Variables = map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
	var err error
	c.task.Graph, err = graph.Build(func(b *graph.Builder) {
		c.b = b
		build(&maker{b, c})
	})
	if err != nil {
		panic(fmt.Sprintf("devicetest: %s: %v", name, err))
	}
	return c.task
}

// Graphs are hand-made graphs that are likely to expose errors of fusion, planning and dispatch.
func Graphs() []Task { return slices.Concat(floatGraphs(), groupedGraphs(), mixedGraphs()) }

func floatGraphs() []Task {
	return []Task{
		hand("product with itself", func(m *maker) {
			x := m.in(65, 33)
			m.out(op.Scale(op.MatMul(x, x, false, true), 1./33), op.MatMul(x, x, true, false))
		}),
		hand("product whose epilogue reads an operand", func(m *maker) {
			x := m.v(64, 64)
			y := op.Add(op.Scale(op.MatMul(x, x, false, false), 1./64), op.Transpose(x))
			m.Assign(x, y)
			m.out(op.Tanh(y), x)
		}),
		hand("products of parts", func(m *maker) {
			x := m.in(192, 64)
			a, b := op.Slice(x, 0, 0, 128), op.Slice(x, 0, 64, 192)
			m.out(op.Scale(op.MatMul(a, b, true, false), 1./64),
				op.Scale(op.MatMul(op.Slice(x, 0, 0, 64), op.Slice(x, 0, 128, 192), false, false), 1./64))
		}),
		hand("variables change places", func(m *maker) {
			a, b, c, d := m.v(64), m.v(64), m.v(64), m.v(64)
			m.Assign(a, b)
			m.Assign(b, c)
			m.Assign(c, a)
			m.Assign(d, op.Add(op.Tanh(d), op.Scale(a, 0.5)))
			m.out(a, d)
		}),
		hand("variables from parts of variables", func(m *maker) {
			a, b := m.v(128, 8), m.v(64, 8)
			m.Assign(b, op.Slice(a, 0, 64, 128))
			m.Assign(a, op.Concat(0, b, op.Tanh(op.Slice(a, 0, 0, 64))))
			m.out(op.Sum(op.Mul(a, a), []int{0}, false))
		}),
		hand("rows of variables", func(m *maker) {
			a, b, at := m.v(2, 9, 3, 4), m.v(1, 5, 3), m.u32(1)
			x, y := op.PutRows(a, op.Tanh(m.in(2, 2, 3, 4)), at), op.PutRows(b, m.in(1, 4, 3), at)
			m.Assign(a, x)
			m.Assign(b, y)
			m.out(op.Sum(x, []int{1}, false), op.Tanh(y), y)
		}),
		hand("rows of variables that are read elsewhere", func(m *maker) {
			a, b, c, d, at := m.v(1, 9, 4), m.v(1, 9, 4), m.v(1, 9, 4), m.v(1, 9, 4), m.u32(1)
			rows := m.in(1, 3, 4)
			x := op.PutRows(a, rows, at)
			m.Assign(a, x)
			m.Assign(b, op.PutRows(b, op.Slice(op.Tanh(b), 1, 0, 3), at))
			m.Assign(c, op.PutRows(op.PutRows(c, rows, op.Full(m.Builder, graph.U32, 6, 1)), rows, at))
			m.out(op.Tanh(a), op.PutRows(d, rows, at))
		}),
		hand("in place, but read elsewhere", func(m *maker) {
			v, g := m.v(64, 64), m.in(64, 64)
			m.out(op.Mul(op.Transpose(v), g), op.ReduceMax(v, []int{0}, false))
			m.Assign(v, op.Add(op.Scale(v, 0.9), op.Scale(g, 0.1)))
		}),
		hand("one value, many homes", func(m *maker) {
			a, b, x := m.v(33), m.v(33), m.in(33)
			y := op.Exp(op.Scale(x, 0.5))
			m.Assign(a, y)
			m.Assign(b, y)
			m.out(y, op.Add(y, a), y)
		}),
		hand("sources as outputs", func(m *maker) {
			v, x := m.v(5, 3), m.in(4)
			k := m.Constant("k", graph.T(graph.F32, 3), []float64{1, 2, 3})
			m.Assign(v, op.Scale(v, 0.5))
			m.out(v, x, k, op.Reshape(v, 15), op.Slice(v, 0, 1, 3))
		}),
		hand("rows with many results", func(m *maker) {
			x := m.in(37, 130)
			mean := op.Mean(x, []int{1}, true)
			d := op.Sub(x, mean)
			variance := op.Mean(op.Square(d), []int{1}, true)
			m.out(d, op.Mul(d, op.Rsqrt(op.Shift(variance, 0.1))), mean, variance, op.ReduceMax(op.Abs(d), []int{1}, false))
		}),
		hand("reductions that are not of the last axes", func(m *maker) {
			x := m.in(7, 130, 5)
			r := op.Mean(x, []int{1}, true)
			m.out(op.Sub(x, r), op.ReduceMax(x, []int{0}, false), op.Mean(op.Square(x), []int{0, 1}, false),
				op.Tanh(op.Mean(x, []int{0, 2}, false)))
		}),
		hand("reductions of reductions", func(m *maker) {
			x := m.in(6, 40, 50)
			m.out(op.ReduceMax(op.Mean(x, []int{2}, false), []int{1}, false), op.Mean(op.ReduceMin(x, []int{0}, false), nil, false))
		}),
		hand("long rows", func(m *maker) {
			x := m.in(3, 70001)
			m.out(op.Sub(x, op.ReduceMax(x, []int{1}, true)), op.Mean(x, nil, false), op.LogSoftmax(x))
		}),
		hand("more rows than a dispatch dimension", func(m *maker) {
			x := m.in(66000, 65)
			m.out(op.Mean(x, []int{1}, false), op.ReduceMax(x, []int{0}, false), op.Softmax(x))
		}),
		hand("more elements than a dispatch dimension of workgroups", func(m *maker) {
			x, v := m.in(65536*64+77), m.v(65536*64+77)
			m.Assign(v, op.Scale(op.Add(v, x), 0.5))
			m.out(op.Slice(v, 0, 65536*64, 65536*64+77))
		}),
		hand("more inputs than bindings", func(m *maker) {
			x := m.in(50)
			for range 19 {
				x = op.Scale(op.Add(x, m.in(50)), 0.5)
			}
			m.out(x)
		}),
		hand("more scalars than bindings", func(m *maker) {
			x := m.in(50)
			for range 5 {
				s := op.Add(op.Mul(m.in(), m.in()), m.in())
				x = op.Where(op.Less(m.u32(), op.Scalar(m.Builder, graph.U32, 2)), op.Scale(op.Add(x, s), 0.25), op.Mul(s, s))
			}
			m.out(op.Scale(x, 0.1), op.Sum(x, nil, false))
		}),
		hand("integers", func(m *maker) {
			x := m.u32(40, 70)
			m.out(op.Sum(x, []int{1}, false), op.ReduceMax(op.Mul(x, x), nil, false),
				op.ReduceMin(op.Add(x, op.Iota(m.Builder, graph.U32, 1, 40, 70)), []int{0}, false))
		}),
		hand("scopes", func(m *maker) {
			x := m.in(16, 24)
			for i := range 3 {
				m.Scope(fmt.Sprint("layer ", i), func() {
					h := op.MatMul(op.Softmax(x), m.v(24, 24), false, true)
					x = op.Scale(op.Add(x, op.SiLU(h)), 0.5)
				})
			}
			m.out(x)
		}),
	}
}
