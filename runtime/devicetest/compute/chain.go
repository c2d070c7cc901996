package compute

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// chainTolerance bounds the rounding errors of a chain of ops with moderate derivatives.
const chainTolerance = 1e-4

// Chain returns a random graph with that number of ops: arithmetic, views, reductions and matrix products that use each
// other's results. Any result may be an output, and variables are assigned any value of their type, also another
// variable. The graph shows whether fusion and memory planning change results. A shorter chain of the same seed is a
// prefix of a longer one.
func Chain(seed uint64, length int) Task {
	c := &chain{task: Task{Op: "chain", Tolerance: chainTolerance}}
	return c.grow(seed, length, (*chain).begin, steps)
}

// grow makes the task: the sources, and steps of random kinds.
func (c *chain) grow(seed uint64, length int, begin func(*chain), kinds []func(*chain, *graph.Value) *graph.Value) Task {
	c.r, c.prefix = rand.New(rand.NewPCG(seed, 11)), fmt.Sprintf("%s%d.", c.task.Op, seed)
	c.task.Name, c.task.Runs, c.task.Floor = fmt.Sprintf("seed %d, %d ops", seed, length), 2, 1
	c.task.Inputs, c.task.Variables = map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
	var err error
	c.task.Graph, err = graph.Build(func(b *graph.Builder) {
		c.b = b
		begin(c)
		for i := range length {
			if c.r.IntN(6) == 0 {
				c.scope = []string{"", "layer 0", "layer 1"}[min(i*3/length, 2)]
			}
			b.Scope(c.scope, func() { c.step(kinds) })
		}
		c.r = rand.New(rand.NewPCG(seed, 12))
		c.finish()
	})
	if err != nil {
		panic(fmt.Sprintf("devicetest: %s: %v", c.task.Name, err))
	}
	return c.task
}

// Chains returns the first n random graphs.
func Chains(n int) []Task { return ChainsFrom(0, n) }

// ChainsFrom returns n random graphs with consecutive seeds, from seed on.
func ChainsFrom(seed uint64, n int) []Task {
	var ts []Task
	for last := seed + uint64(n); seed < last; seed++ {
		ts = append(ts, Chain(seed, 4+int(seed)%24))
	}
	return ts
}

type chain struct {
	task   Task
	b      *graph.Builder
	r      *rand.Rand
	pool   []*graph.Value // f32, magnitudes around one
	vars   []*graph.Value
	main   graph.Shape
	scope  string
	prefix string
	named  int
	exact  bool // sources hold quarters up to eight, which 16-bit floats represent
}

const maxElements = 20000

var extents = []int{1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 65, 130}

// begin declares the first sources.
func (c *chain) begin() {
	rank := 1 + c.r.IntN(4)
	for len(c.main) < rank {
		d := extents[c.r.IntN(len(extents))]
		if c.main.Len()*d > maxElements {
			d = 2
		}
		c.main = append(c.main, d)
	}
	last := c.main[rank-1:]
	c.pool = append(c.pool, c.input(graph.T(graph.F32, c.main...)), c.input(graph.T(graph.F32, last...)))
	for _, s := range []graph.Shape{c.main, c.main, last, {}} {
		if c.r.IntN(3) > 0 {
			c.vars = append(c.vars, c.variable(s))
		}
	}
	c.pool = append(c.pool, c.vars...)
	if c.r.IntN(4) == 0 {
		c.pool = append(c.pool, op.Shift(op.Scale(op.Iota(c.b, graph.F32, 0, c.main...), 1/float64(c.main[0])), -0.5))
	}
}

func (c *chain) fill(t graph.Type, below int) *graph.Tensor {
	x := graph.NewTensor(t)
	for i := range x.Data {
		switch {
		case t.DType.Float() && c.exact:
			x.Data[i] = float64(c.r.IntN(65)-32) / 4
		case t.DType.Float():
			x.Data[i] = float64(float32(4*c.r.Float64() - 2))
		default:
			x.Data[i] = float64(c.r.IntN(below))
		}
	}
	return x
}

func (c *chain) name(kind string) string {
	c.named++
	return fmt.Sprint(c.prefix, kind, c.named)
}

func (c *chain) input(t graph.Type) *graph.Value { return c.integers(t, 4) }

// integers returns an input whose elements are below a bound.
func (c *chain) integers(t graph.Type, below int) *graph.Value {
	name := c.name("x")
	c.task.Inputs[name] = c.fill(t, below)
	return c.b.Input(name, t)
}

func (c *chain) variable(s graph.Shape) *graph.Value { return c.variableOf(graph.T(graph.F32, s...)) }

func (c *chain) variableOf(t graph.Type) *graph.Value {
	name := c.name("v")
	c.task.Variables[name] = c.fill(t, 0)
	return c.b.Variable(name, t)
}

// pick prefers recent values, so that chains grow long.
func (c *chain) pick() *graph.Value {
	n := len(c.pool)
	return c.pool[max(c.r.IntN(n), c.r.IntN(n))]
}

// like picks a value that arithmetic with x accepts.
func (c *chain) like(x *graph.Value) *graph.Value {
	var fit []*graph.Value
	for _, y := range c.pool {
		if s, err := op.BroadcastShapes(x.Shape, y.Shape); err == nil && x.DType == y.DType && s.Len() <= max(maxElements, x.Shape.Len()) {
			fit = append(fit, y)
		}
	}
	return fit[c.r.IntN(len(fit))]
}

// steps are the kinds of growth, each from an existing value. A step returns nil for a value that does not suit it.
var steps = []func(c *chain, x *graph.Value) *graph.Value{
	(*chain).unary, (*chain).unary, (*chain).unary, (*chain).binary, (*chain).binary, (*chain).binary, (*chain).binary,
	(*chain).reduce, (*chain).reduce, (*chain).reduce, (*chain).center, (*chain).reshape, (*chain).permute, (*chain).slice,
	(*chain).concat, (*chain).pad, (*chain).where, (*chain).rows, (*chain).matmul, (*chain).matmul, (*chain).linear,
	(*chain).random, (*chain).crossEntropy,
}

func (c *chain) step(kinds []func(*chain, *graph.Value) *graph.Value) {
	for {
		if y := kinds[c.r.IntN(len(kinds))](c, c.pick()); y != nil {
			c.pool = append(c.pool, y)
			return
		}
	}
}

func (c *chain) unary(x *graph.Value) *graph.Value {
	switch c.r.IntN(10) {
	case 0:
		return op.Tanh(x)
	case 1:
		return op.Sigmoid(x)
	case 2:
		return op.Exp(op.Clamp(x, -2, 1))
	case 3:
		return op.Square(op.Clamp(x, -2, 2))
	case 4:
		return op.Rsqrt(op.Shift(op.Abs(x), 1))
	case 5:
		return op.Neg(x)
	case 6:
		return op.Scale(x, 0.75)
	case 7:
		return op.SiLU(x)
	case 8:
		return op.Log(op.Shift(op.Abs(x), 1))
	default:
		return op.GELUTanh(x)
	}
}

func (c *chain) binary(x *graph.Value) *graph.Value {
	y := c.like(x)
	switch c.r.IntN(6) {
	case 0:
		return op.Mul(op.Tanh(x), y)
	case 1:
		return op.Div(x, op.Shift(op.Abs(y), 1))
	case 2:
		return op.Maximum(x, y)
	case 3:
		return op.Scale(op.Sub(x, y), 0.5)
	default:
		return op.Scale(op.Add(x, y), 0.5)
	}
}

// axes returns some axes of x, or all.
func (c *chain) axes(x *graph.Value) []int {
	var axes []int
	for i := range x.Shape {
		if c.r.IntN(2) == 0 {
			axes = append(axes, i)
		}
	}
	if len(axes) == 0 && len(x.Shape) > 0 {
		axes = append(axes, c.r.IntN(len(x.Shape)))
	}
	return axes
}

func (c *chain) reduce(x *graph.Value) *graph.Value { return c.fold(x, c.r.IntN(2) == 0) }

func (c *chain) fold(x *graph.Value, keep bool) *graph.Value {
	axes := c.axes(x)
	if len(axes) == 0 {
		return nil
	}
	switch c.r.IntN(4) {
	case 0:
		return op.ReduceMax(x, axes, keep)
	case 1:
		return op.ReduceMin(x, axes, keep)
	case 2:
		return op.Mean(x, axes, keep)
	default:
		return op.Mean(op.Square(op.Tanh(x)), axes, keep)
	}
}

// center combines a reduction with its operand: one kernel that loops twice over its columns.
func (c *chain) center(x *graph.Value) *graph.Value {
	r := c.fold(x, true)
	if r == nil {
		return nil
	}
	if c.r.IntN(2) == 0 {
		return op.Scale(op.Sub(x, r), 0.5)
	}
	return op.Mul(op.Tanh(x), r)
}

func (c *chain) reshape(x *graph.Value) *graph.Value {
	n := x.Shape.Len()
	var s graph.Shape
	for n > 1 && len(s) < 4 {
		d := 1 + c.r.IntN(n)
		for n%d != 0 {
			d--
		}
		s, n = append(s, d), n/d
	}
	if n > 1 {
		s = append(s, n)
	}
	c.r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return op.Reshape(x, s...)
}

func (c *chain) permute(x *graph.Value) *graph.Value { return op.Permute(x, c.r.Perm(len(x.Shape))...) }

// slice cuts at multiples of large powers of two half of the time, so that some slices can be aliases.
func (c *chain) slice(x *graph.Value) *graph.Value {
	if len(x.Shape) == 0 {
		return nil
	}
	axis := c.r.IntN(len(x.Shape))
	if c.r.IntN(2) == 0 {
		axis = 0
	}
	n := x.Shape[axis]
	start := c.r.IntN(n)
	if c.r.IntN(2) == 0 {
		start = start / 64 * 64
	}
	return op.Slice(x, axis, start, start+1+c.r.IntN(n-start))
}

func (c *chain) concat(x *graph.Value) *graph.Value {
	y := c.like(x)
	if len(x.Shape) == 0 || !x.Shape.Equal(y.Shape) || x.Shape.Len()*3 > maxElements {
		return nil
	}
	parts := []*graph.Value{x, y, x}[:2+c.r.IntN(2)]
	return op.Concat(c.r.IntN(len(x.Shape)), parts...)
}

func (c *chain) pad(x *graph.Value) *graph.Value {
	if len(x.Shape) == 0 || x.Shape.Len()*4 > maxElements {
		return nil
	}
	return op.Pad(x, c.r.IntN(len(x.Shape)), c.r.IntN(3), c.r.IntN(3), 0.5)
}

func (c *chain) where(x *graph.Value) *graph.Value {
	cond := c.input(graph.T(graph.U32, x.Shape...))
	return op.Where(op.Less(cond, op.Scalar(c.b, graph.U32, 2)), x, c.like(x))
}

// rows are the ops over the last axis.
func (c *chain) rows(x *graph.Value) *graph.Value {
	if len(x.Shape) == 0 {
		return nil
	}
	w := c.input(graph.T(graph.F32, x.Shape[len(x.Shape)-1]))
	switch c.r.IntN(4) {
	case 0:
		return op.Softmax(x)
	case 1:
		return op.Scale(op.LogSoftmax(x), 0.25)
	case 2:
		return op.LayerNorm(x, w, w, 0.5)
	default:
		return op.RMSNorm(x, w, 0.5)
	}
}

// matmul multiplies x by itself or by another value that fits.
func (c *chain) matmul(x *graph.Value) *graph.Value {
	r := len(x.Shape)
	if r < 2 {
		return nil
	}
	ta := c.r.IntN(2) == 0
	k := x.Shape[r-1]
	if ta {
		k = x.Shape[r-2]
	}
	y, tb := x, !ta
	var fit []*graph.Value
	for _, v := range c.pool {
		s := v.Shape
		if len(s) >= 2 && (len(s) == 2 || s[:len(s)-2].Equal(x.Shape[:r-2])) && slices.Contains(s[len(s)-2:], k) {
			fit = append(fit, v)
		}
	}
	if len(fit) > 0 && c.r.IntN(3) > 0 {
		y = fit[c.r.IntN(len(fit))]
		tb = y.Shape[len(y.Shape)-1] == k
	}
	n := y.Shape[len(y.Shape)-1]
	if tb {
		n = y.Shape[len(y.Shape)-2]
	}
	if x.Shape.Len()/k*n > maxElements {
		return nil
	}
	return op.Scale(op.MatMul(x, y, ta, tb), 1/float64(k))
}

// linear is a layer: a product with a new matrix, bias, activation, residual.
func (c *chain) linear(x *graph.Value) *graph.Value {
	r := len(x.Shape)
	if r < 2 {
		return nil
	}
	k := x.Shape[r-1]
	if k > 300 {
		return nil
	}
	w, bias := c.input(graph.T(graph.F32, k, k)), c.input(graph.T(graph.F32, k))
	y := op.Add(op.Scale(op.MatMul(x, w, false, c.r.IntN(2) == 0), 1/float64(k)), bias)
	if c.r.IntN(2) == 0 {
		c.pool = append(c.pool, y)
	}
	return op.Scale(op.Add(op.GELU(y), x), 0.5)
}

func (c *chain) random(x *graph.Value) *graph.Value {
	return op.Dropout(x, c.input(graph.T(graph.U32, 2)), 0.25)
}

func (c *chain) crossEntropy(x *graph.Value) *graph.Value {
	if len(x.Shape) != 2 {
		return nil
	}
	targets := c.integers(graph.T(graph.U32, x.Shape[0]), x.Shape[1])
	loss, counted := op.CrossEntropy(x, targets, op.CrossEntropyOptions{Ignore: 1})
	c.pool = append(c.pool, op.Mul(counted, loss))
	return op.Scale(loss, 0.25)
}

// finish chooses outputs, among them sources and views, and assigns every other variable.
func (c *chain) finish() {
	c.b.Output("last", c.pool[len(c.pool)-1])
	for i := range c.r.IntN(4) {
		c.b.Output(fmt.Sprint("y", i), c.pick())
	}
	for _, v := range c.vars {
		if c.r.IntN(5) > 0 {
			c.b.Assign(v, c.replacement(v))
		}
	}
}

// replacement returns a value of v's type: an existing one, or a slice of another.
func (c *chain) replacement(v *graph.Value) *graph.Value {
	var same, larger []*graph.Value
	for _, x := range c.pool {
		if x.Type.Equal(v.Type) {
			same = append(same, x)
		} else if x.DType == v.DType && x.Shape.Len() >= v.Shape.Len() {
			larger = append(larger, x)
		}
	}
	if len(larger) == 0 || c.r.IntN(4) > 0 {
		return same[c.r.IntN(len(same))]
	}
	x := larger[c.r.IntN(len(larger))]
	n := v.Shape.Len()
	start := c.r.IntN(x.Shape.Len() - n + 1)
	if c.r.IntN(2) == 0 {
		start = start / 64 * 64
	}
	return op.Reshape(op.Slice(op.Reshape(x, -1), 0, start, start+n), v.Shape...)
}
