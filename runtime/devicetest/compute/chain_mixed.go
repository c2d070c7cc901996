package compute

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// MixedChain returns a random graph like Chain whose values are f32 or 16-bit floats. All of its numbers are quarters
// up to eight, which every dtype represents, so the results must be exact.
func MixedChain(seed uint64, length int) Task {
	c := &chain{exact: true, task: Task{Op: "halfchain", Tolerance: exactly}}
	return c.grow(seed, length, (*chain).beginHalves, halfSteps)
}

// exactly is the tolerance of results that are not rounded.
const exactly = 1e-30

// MixedChains returns n random graphs.
func MixedChains(n int) []Task {
	var ts []Task
	for seed := range uint64(n) {
		ts = append(ts, MixedChain(seed, 4+int(seed)%24))
	}
	return ts
}

var floats = []graph.DType{graph.F32, graph.F16, graph.BF16}

func (c *chain) float() graph.DType { return floats[c.r.IntN(len(floats))] }

func (c *chain) beginHalves() {
	for rank := 1 + c.r.IntN(3); len(c.main) < rank; {
		c.main = append(c.main, extents[c.r.IntN(len(extents)-2)])
	}
	last := c.main[len(c.main)-1:]
	c.pool = append(c.pool, c.input(graph.T(graph.F32)), c.input(graph.T(graph.F32, c.main...)), c.input(graph.T(c.float(), c.main...)),
		c.input(graph.T(c.float(), last...)))
	for _, s := range []graph.Shape{c.main, c.main, last, {}} {
		c.vars = append(c.vars, c.variableOf(graph.T(c.float(), s...)))
	}
	c.pool = append(c.pool, c.vars...)
}

var halfSteps = []func(c *chain, x *graph.Value) *graph.Value{
	(*chain).cast, (*chain).cast, (*chain).cast, (*chain).inF32, (*chain).inF32, (*chain).extreme, (*chain).extreme, (*chain).extreme,
	(*chain).reshape, (*chain).permute, (*chain).slice, (*chain).slice, (*chain).concat, (*chain).concatMany,
	(*chain).quarters,
}

func (c *chain) cast(x *graph.Value) *graph.Value { return op.Cast(x, c.float()) }

// inF32 computes with x in f32, and rounds to quarters again.
func (c *chain) inF32(x *graph.Value) *graph.Value {
	x = op.Cast(x, graph.F32)
	switch y := c.like(x); c.r.IntN(3) {
	case 0:
		return op.Neg(x)
	case 1:
		return op.Clamp(op.Sub(x, y), -8, 8)
	default:
		return op.Maximum(x, y)
	}
}

// extreme subtracts x from the maximum of its rows, or returns the minimum alone.
func (c *chain) extreme(x *graph.Value) *graph.Value {
	x = op.Cast(x, graph.F32)
	axes := c.axes(x)
	if len(axes) == 0 {
		return nil
	}
	switch c.r.IntN(3) {
	case 0:
		return op.ReduceMin(x, axes, c.r.IntN(2) == 0)
	case 1:
		return op.Cast(op.Clamp(op.Sub(x, op.ReduceMax(x, axes, true)), -8, 8), c.float())
	default:
		return op.Clamp(op.Sub(op.ReduceMax(x, axes, true), x), -8, 8)
	}
}

// quarters returns a product of x, rounded to quarters, and perhaps cast.
func (c *chain) quarters(x *graph.Value) *graph.Value {
	r := len(x.Shape)
	if r < 2 {
		return nil
	}
	k, n := x.Shape[r-1], []int{4, 5, 12}[c.r.IntN(3)]
	w, beside := c.input(graph.T(x.DType, n, k)), c.input(graph.T(c.float(), n))
	y := op.Clamp(op.Add(op.MatMul(x, w, false, true), toF32(beside)), -8, 8)
	y = op.Scale(op.Cast(op.Cast(op.Scale(y, 4), graph.I32), graph.F32), 0.25)
	if c.r.IntN(2) == 0 {
		c.pool = append(c.pool, y)
	}
	return op.Cast(y, c.float())
}

// concatMany joins more values than one kernel can select from. Whole words are copied.
func (c *chain) concatMany(x *graph.Value) *graph.Value {
	if len(x.Shape) == 0 || x.Shape.Len()*10 > maxElements {
		return nil
	}
	n := x.Shape[0]
	return op.Concat(0, x, op.Slice(x, 0, n/2, n), op.Slice(x, 0, 0, (n+1)/2), x)
}
