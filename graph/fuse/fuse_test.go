package fuse_test

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var options = fuse.Options{MaxBindings: 8, OffsetAlignment: 256}

func run(t *testing.T, build func(b *graph.Builder)) *fuse.Result {
	t.Helper()
	g, err := graph.Build(build)
	require.NoError(t, err)
	r, err := fuse.Run(g, options)
	require.NoError(t, err)
	return r
}

func kinds(r *fuse.Result) (ks []fuse.Kind) {
	for _, g := range r.Groups {
		ks = append(ks, g.Kind)
	}
	return ks
}

func TestRowwiseChainsAreOneKernel(t *testing.T) {
	for name, f := range map[string]func(x, w *graph.Value) *graph.Value{
		"softmax":     func(x, _ *graph.Value) *graph.Value { return op.Softmax(x) },
		"log softmax": func(x, _ *graph.Value) *graph.Value { return op.LogSoftmax(x) },
		"rms norm":    func(x, w *graph.Value) *graph.Value { return op.RMSNorm(x, w, 1e-5) },
		"layer norm":  func(x, w *graph.Value) *graph.Value { return op.LayerNorm(x, w, w, 1e-5) },
		"pointwise":   func(x, _ *graph.Value) *graph.Value { return op.SiLU(op.Mul(op.Exp(x), op.Tanh(x))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, func(b *graph.Builder) {
				x := b.Input("x", graph.T(graph.F32, 4, 100, 96))
				b.Output("y", f(op.Scale(x, 2), b.Variable("w", graph.T(graph.F32, 96))))
			})
			assert.Len(t, r.Groups, 1)
		})
	}
}

func TestMatMulTakesItsEpilogue(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x, w := b.Input("x", graph.T(graph.F32, 2, 8, 32)), b.Variable("w", graph.T(graph.F32, 16, 32))
		y := op.Add(op.MatMul(x, w, false, true), b.Variable("bias", graph.T(graph.F32, 16)))
		b.Output("y", op.Add(op.Scale(op.GELU(y), 0.5), b.Input("residual", graph.T(graph.F32, 2, 8, 16))))
	})
	assert.Equal(t, []fuse.Kind{fuse.MatMul}, kinds(r))
}

// Grouped products fuse with what follows as any do: SiLU(gate)·up is part of the second, and a sum of gradients of the
// gradient's product.
func TestGroupedProductsTakeTheirEpilogues(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x, offsets := b.Input("x", graph.T(graph.F32, 64, 32)), b.Input("offsets", graph.T(graph.U32, 5))
		gate, up := b.Variable("gate", graph.T(graph.F32, 4, 16, 32)), b.Variable("up", graph.T(graph.F32, 4, 16, 32))
		h := op.Mul(op.SiLU(op.GroupedMatMul(x, gate, offsets, true)), op.GroupedMatMul(x, up, offsets, true))
		b.Output("h", op.Cast(h, graph.BF16))
		b.Assign(gate, op.Add(gate, op.GroupedMatMulReduce(h, x, offsets)))
	})
	assert.Equal(t, []fuse.Kind{fuse.MatMul, fuse.MatMul, fuse.MatMul}, kinds(r))
	sum := r.Groups[slices.IndexFunc(r.Groups, func(g *fuse.Group) bool { return g.Nodes[0].Op.Name() == "grouped_matmul_reduce" })]
	assert.Len(t, sum.InPlace[sum.Stores[0]], 1, "the gradient is added in place")
}

func TestNothingSpansScopes(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 64))
		b.Scope("a", func() { x = op.Exp(x) })
		b.Scope("b", func() { x = op.Neg(x) })
		b.Output("y", x)
	})
	assert.Len(t, r.Groups, 2)
}

func TestReshapeAndAlignedSliceAreAliases(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := op.Exp(b.Input("x", graph.T(graph.F32, 4, 16, 32)))
		w := b.Variable("w", graph.T(graph.F32, 32, 32))
		b.Output("all", op.MatMul(op.Reshape(x, 64, 32), w, false, false))
		b.Output("one", op.MatMul(op.Reshape(op.Slice(x, 0, 1, 2), 16, 32), w, false, false))
		b.Output("odd", op.MatMul(op.Reshape(op.Slice(x, 2, 1, 2), 64, 1), op.Slice(w, 0, 0, 1), false, false))
	})
	maps := 0
	for _, k := range kinds(r) {
		if k == fuse.Map {
			maps++
		}
	}
	assert.Equal(t, 2, maps, "exp, and the column that does not lie in one piece")
}

func TestOverlappingOperandsGetTheirOwnMemory(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := op.Exp(b.Input("x", graph.T(graph.F32, 32, 32)))
		b.Output("y", op.MatMul(op.Slice(x, 0, 0, 16), x, false, false))
		b.Output("z", op.MatMul(x, x, false, true))
	})
	assert.Len(t, r.Groups, 4, "exp, the copied slice, two products")
}

func TestAdamWUpdatesInPlaceInOneKernelOfEightBindings(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		shape := graph.T(graph.F32, 64, 32)
		p, g, m, v := b.Variable("p", shape), b.Variable("g", shape), b.Variable("m", shape), b.Variable("v", shape)
		hyper, norm, halted := b.Input("hyper", graph.T(graph.F32, 4)), b.Input("norm", graph.T(graph.F32)),
			b.Variable("halted", graph.T(graph.U32))
		clipped := op.Mul(g, op.Minimum(op.Scalar(b, graph.F32, 1), op.Reciprocal(norm)))
		lr := op.Reshape(op.Slice(hyper, 0, 1, 2))
		m1 := op.Add(op.Scale(m, 0.9), op.Scale(clipped, 0.1))
		v1 := op.Add(op.Scale(v, 0.99), op.Scale(op.Square(clipped), 0.01))
		p1 := op.Sub(p, op.Mul(lr, op.Div(m1, op.Shift(op.Sqrt(v1), 1e-8))))
		b.Assign(p, op.Where(halted, p, p1))
		b.Assign(m, op.Where(halted, m, m1))
		b.Assign(v, op.Where(halted, v, v1))
	})
	require.Len(t, r.Groups, 1)
	assert.Len(t, r.Direct, 3)
}

func TestVariablesAreReadBeforeTheyAreOverwritten(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := b.Variable("x", graph.T(graph.F32, 8))
		b.Assign(x, op.Scale(x, 2))
		b.Output("sum", op.Sum(x, nil, false))
	})
	require.Len(t, r.Groups, 2)
	assert.Equal(t, fuse.Reduce, r.Groups[0].Kind)
	assert.Len(t, r.Direct, 1)
}

// Sums that are written down last, as those of gradients are, do not keep what they are made of until then.
func TestAssignedResultsComeAsSoonAsTheyCan(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		shape := graph.T(graph.F32, 32, 32)
		x, w := b.Input("x", shape), b.Variable("w", shape)
		var products []*graph.Value
		for range 3 {
			x = op.MatMul(x, w, false, false)
			products = append(products, op.MatMul(x, x, true, false))
		}
		b.Output("y", x)
		for i, p := range products {
			sum := b.Variable("sum"+string(rune('0'+i)), shape)
			b.Assign(sum, op.Add(sum, p))
		}
	})
	var sums []bool
	for _, g := range r.Groups {
		sums = append(sums, len(g.Nodes) == 2)
	}
	assert.Equal(t, []bool{false, true, false, true, false, true}, sums)
	assert.Len(t, r.Direct, 3)
}

// Weights are rounded right before the products that read them, although they could be at once. A product that is only
// assigned comes as soon as it can, and what it reads as well.
func TestWeightsAreRoundedLate(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := b.Variable("x", graph.T(graph.BF16, 32, 32))
		var rounded []*graph.Value
		for _, name := range []string{"w0", "w1", "w2"} {
			rounded = append(rounded, op.Cast(b.Variable(name, graph.T(graph.F32, 32, 32)), graph.BF16))
		}
		for i, w := range rounded {
			b.Scope(string('a'+rune(i)), func() { x = op.Cast(op.MatMul(x, w, false, true), graph.BF16) })
		}
		b.Output("x", x)
		gradient := b.Variable("gradient", graph.T(graph.F32, 32, 32))
		b.Assign(gradient, op.MatMul(rounded[0], rounded[0], true, false))
	})
	var casts []int
	for i, g := range r.Groups {
		if g.Kind != fuse.MatMul {
			casts = append(casts, i)
		}
	}
	assert.Equal(t, []int{0, 3, 5}, casts, "each before its product, and one for the gradient as well")
}

func TestKeptVariablesAreNotOverwritten(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x, y := b.Variable("x", graph.T(graph.F32, 8)), b.Variable("y", graph.T(graph.F32, 8))
		b.Assign(y, x)
		b.Assign(x, op.Scale(x, 2))
	})
	assert.Empty(t, r.Direct)
}

func TestReductionsThatReadTheirOwnRowReversedAreNotOneKernel(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 64, 64))
		s := op.Sum(x, []int{1}, false)                                      // one number a row
		b.Output("y", op.Mul(x, op.Broadcast(op.Reshape(s, 1, 64), 64, 64))) // used a column
	})
	assert.Len(t, r.Groups, 2)
}

func TestAProductDoesNotComputeItsOwnOperand(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := op.Exp(b.Input("x", graph.T(graph.F32, 32, 32)))
		b.Output("y", op.Add(op.MatMul(x, x, false, true), x))
	})
	assert.Equal(t, []fuse.Kind{fuse.Map, fuse.MatMul}, kinds(r))
}

// The gate's derivative is computed where the gradient of the product arrives, not stored first.
func TestSwiGLUBackwardIsTheEpilogueOfOneProduct(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		gate, up := b.Input("gate", graph.T(graph.F32, 64, 48)), b.Input("up", graph.T(graph.F32, 64, 48))
		dh := op.MatMul(b.Input("dy", graph.T(graph.F32, 64, 32)), b.Variable("down", graph.T(graph.F32, 32, 48)), false, false)
		s := op.Sigmoid(gate)
		b.Output("dup", op.Mul(dh, op.Mul(gate, s)))
		b.Output("dgate", op.Mul(op.Mul(dh, up), op.Mul(s, op.Shift(op.Mul(gate, op.Shift(op.Neg(s), 1)), 1))))
	})
	assert.Equal(t, []fuse.Kind{fuse.MatMul}, kinds(r))
}

// A square that only a norm's sum reads is left to the norm.
func TestResidualThenNormStoresNoSquare(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 64, 32))
		y := op.Add(x, op.MatMul(x, b.Variable("w", graph.T(graph.F32, 32, 32)), false, true))
		b.Output("n", op.RMSNorm(y, b.Variable("g", graph.T(graph.F32, 32)), 1e-5))
		b.Output("y", y)
	})
	require.Equal(t, []fuse.Kind{fuse.MatMul, fuse.Reduce}, kinds(r))
	assert.Len(t, r.Groups[0].Stores, 1)
}

// There may be more ways through a graph than can be walked, one after the other, and more nodes than one kernel should
// have.
func TestLongChainsOfForks(t *testing.T) {
	for name, extent := range map[string]int{"single elements": 1, "rows": 64} {
		t.Run(name, func(t *testing.T) {
			r := run(t, func(b *graph.Builder) {
				x := b.Input("x", graph.T(graph.F32, 64, 64))
				y := op.Sum(x, []int{0}, false)
				y = op.Slice(y, 0, 0, extent)
				for range 400 {
					y = op.Add(y, y)
				}
				b.Output("y", op.Add(y, y))
			})
			for _, g := range r.Groups {
				assert.LessOrEqual(t, len(g.Nodes), 256)
			}
		})
	}
}

// Invocations that own whole words store 16-bit floats: rows with an even number of columns do, other results get a Map
// kernel of their own.
func TestFloat16IsStoredByWholeWords(t *testing.T) {
	for _, c := range []struct {
		what string
		f    func(b *graph.Builder) *graph.Value
		want []fuse.Kind
	}{
		{"rows", func(b *graph.Builder) *graph.Value { return op.Softmax(b.Input("x", graph.T(graph.F32, 5, 96))) },
			[]fuse.Kind{fuse.Reduce}},
		{"odd rows", func(b *graph.Builder) *graph.Value { return op.Softmax(b.Input("x", graph.T(graph.F32, 5, 97))) },
			[]fuse.Kind{fuse.Reduce, fuse.Map}},
		{"a number a row", func(b *graph.Builder) *graph.Value {
			return op.Sum(b.Input("x", graph.T(graph.F32, 6, 96)), []int{1}, false)
		}, []fuse.Kind{fuse.Reduce, fuse.Map}},
		{"elements", func(b *graph.Builder) *graph.Value { return op.Exp(b.Input("x", graph.T(graph.F32, 7))) }, []fuse.Kind{fuse.Map}},
		{"product", func(b *graph.Builder) *graph.Value {
			x := op.Cast(b.Input("x", graph.T(graph.F32, 8, 8)), graph.F16)
			return op.SiLU(op.MatMul(x, x, false, false))
		}, []fuse.Kind{fuse.Map, fuse.MatMul}},
		{"product of odd columns", func(b *graph.Builder) *graph.Value {
			return op.MatMul(b.Input("x", graph.T(graph.F16, 8, 8)), b.Input("y", graph.T(graph.F16, 8, 6)), false, false)
		}, []fuse.Kind{fuse.MatMul, fuse.Map}},
		{"product of two results", func(b *graph.Builder) *graph.Value {
			y := op.MatMul(b.Input("x", graph.T(graph.F16, 8, 8)), b.Input("y", graph.T(graph.F16, 8, 8)), false, false)
			b.Output("sigmoid", op.Cast(op.Sigmoid(y), graph.F16))
			return y
		}, []fuse.Kind{fuse.MatMul, fuse.Map}},
	} {
		r := run(t, func(b *graph.Builder) { b.Output("y", op.Cast(c.f(b), graph.BF16)) })
		assert.Equal(t, c.want, kinds(r), c.what)
	}
}

// Where single 16-bit floats are stored, a product stores any number of such results.
func TestProductsStoreAnyNumberOfFloat16(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		y := op.MatMul(b.Input("x", graph.T(graph.F16, 8, 8)), b.Input("y", graph.T(graph.F16, 8, 8)), false, false)
		for i, z := range []*graph.Value{y, op.Sigmoid(y), op.Square(y)} {
			b.Output(string('a'+rune(i)), op.Cast(z, graph.F16))
		}
	})
	require.NoError(t, err)
	o := options
	for single, want := range map[bool][]fuse.Kind{true: {fuse.MatMul}, false: {fuse.MatMul, fuse.Map, fuse.Map}} {
		o.SingleFloat16Stores = single
		r, err := fuse.Run(g, o)
		require.NoError(t, err)
		assert.Equal(t, want, kinds(r))
	}
}

// What reads 16-bit floats reads them as they are stored, however many there are.
func TestFloat16ThatBecomesF32IsNotStored(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := op.Cast(op.Cast(b.Input("x", graph.T(graph.F32, 64, 64)), graph.BF16), graph.F32)
		b.Output("sum", op.Sum(x, []int{0}, false))
		b.Output("max", op.ReduceMax(x, []int{1}, false))
		b.Scope("other", func() { b.Output("y", op.Exp(x)) })
	})
	require.Len(t, r.Groups, 3)
	for _, g := range r.Groups[:2] {
		for _, v := range g.Stores {
			assert.Equal(t, v.Shape.Len() == 64*64, v.DType == graph.BF16, "%v", v)
		}
	}
}

// Rows are put into the variable that they replace rows of, unless something else reads it.
func TestRowsArePutInPlace(t *testing.T) {
	for name, c := range map[string]struct {
		more  func(b *graph.Builder, old, all *graph.Value)
		place bool
	}{
		"nothing else":           {func(b *graph.Builder, old, all *graph.Value) { b.Assign(old, all) }, true},
		"result is read":         {func(b *graph.Builder, old, all *graph.Value) { b.Assign(old, all); b.Output("y", op.Exp(all)) }, true},
		"result is an output":    {func(b *graph.Builder, old, all *graph.Value) { b.Assign(old, all); b.Output("y", all) }, true},
		"old rows are read":      {func(b *graph.Builder, old, all *graph.Value) { b.Assign(old, all); b.Output("y", op.Exp(old)) }, false},
		"old rows are an output": {func(b *graph.Builder, old, all *graph.Value) { b.Assign(old, all); b.Output("y", old) }, false},
		"old rows move": {func(b *graph.Builder, old, all *graph.Value) {
			b.Assign(old, all)
			b.Assign(b.Variable("w", old.Type), old)
		}, false},
		"another variable": {func(b *graph.Builder, old, all *graph.Value) { b.Assign(b.Variable("w", old.Type), all) }, false},
		"two variables": {func(b *graph.Builder, old, all *graph.Value) {
			b.Assign(b.Variable("w", old.Type), all)
			b.Assign(old, all)
		}, false},
		"no variable is assigned": {func(b *graph.Builder, old, all *graph.Value) { b.Output("y", all) }, false},
	} {
		r := run(t, func(b *graph.Builder) {
			old := b.Variable("v", graph.T(graph.F32, 1, 8, 4))
			c.more(b, old, op.PutRows(old, b.Input("rows", graph.T(graph.F32, 1, 2, 4)), b.Input("position", graph.T(graph.U32, 1))))
		})
		updates := slices.ContainsFunc(r.Groups, func(g *fuse.Group) bool { return fuse.Update(g) != nil })
		assert.Equal(t, c.place, updates, name)
	}
}

// Parts of 16-bit floats share memory where they are whole words at a place that a binding may begin at.
func TestPartsOfFloat16(t *testing.T) {
	r := run(t, func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F16, 513))
		for name, p := range map[string][2]int{"all": {0, 513}, "words": {128, 200}, "odd": {128, 201}, "between": {1, 3},
			"unaligned": {2, 4}, "end": {512, 513}} {
			b.Output(name, op.Reshape(op.Slice(x, 0, p[0], p[1]), 1, p[1]-p[0]))
		}
	})
	shared := map[string]bool{}
	for _, o := range r.Graph.Outputs {
		shared[o.Name] = r.Alias.Base(o.Value) == r.Graph.Nodes[0].Outputs[0]
	}
	assert.Equal(t, map[string]bool{"all": true, "words": true, "odd": false, "between": false, "unaligned": false, "end": false}, shared)
}

func TestAlong(t *testing.T) {
	for _, c := range []struct {
		shape graph.Shape
		axes  []int
		want  bool
	}{
		{graph.Shape{8, 3}, []int{1}, true}, {graph.Shape{8, 3}, []int{0}, false}, {graph.Shape{8, 3}, []int{0, 1}, true},
		{graph.Shape{8, 3, 1}, []int{1}, true}, {graph.Shape{8, 3, 1}, []int{0, 2}, false}, {graph.Shape{4, 5, 6}, []int{0, 2}, true},
		{graph.Shape{1}, []int{0}, true},
	} {
		assert.Equal(t, c.want, fuse.Domain{Shape: c.shape, Axes: c.axes}.Along(), "%v over %v", c.shape, c.axes)
	}
}
