package op_test

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Ops that do not say that they take 16-bit floats refuse them, and say what to do.
func TestFloat16IsRefused(t *testing.T) {
	forCases(t, func(c graph.Case) bool {
		_, takes := c.Op.(graph.Float16Op)
		return !takes && slices.ContainsFunc(c.Inputs, func(in graph.Type) bool { return in.DType.Float() })
	}, func(t *testing.T, c graph.Case) {
		for i, in := range c.Inputs {
			if !in.DType.Float() {
				continue
			}
			k := c
			k.Inputs = slices.Clone(c.Inputs)
			k.Inputs[i].DType = graph.BF16
			_, err := graph.Build(func(b *graph.Builder) { b.Apply(k.Op, declare(b, k)...) })
			assert.ErrorContains(t, err, c.Op.Name()+" is not defined for bf16, cast it to f32 first")
		}
	})
	for _, o := range []graph.Op{&op.FullOp{Type: graph.T(graph.F16, 2)}, &op.IotaOp{Type: graph.T(graph.F16, 2)}} {
		_, err := graph.Build(func(b *graph.Builder) { b.Apply(o) })
		assert.ErrorContains(t, err, "result 0 is f16[2]: "+o.Name()+" is not defined for f16, cast one of f32")
	}
}

// gradients are those of y by its inputs, given one for y, as numbers.
func gradientsOf(t *testing.T, in map[string]*graph.Tensor,
	y func(b *graph.Builder, in map[string]*graph.Value) *graph.Value) map[string]*graph.Tensor {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		vs := map[string]*graph.Value{}
		for _, name := range []string{"a", "b", "dy"} {
			vs[name] = b.Input(name, in[name].Type)
		}
		for i, d := range autodiff.Gradients(y(b, vs), vs["dy"], vs["a"], vs["b"]) {
			b.Output([]string{"a", "b"}[i], d)
		}
	})
	require.NoError(t, err)
	out, err := eval.Run(g, in, nil)
	require.NoError(t, err)
	return out
}

// The gradient of a product of 16-bit floats is f32: that of the product in f32, but of a gradient rounded as the
// operands are.
func TestGradientOfProductsOfFloat16(t *testing.T) {
	for _, d := range []graph.DType{graph.F16, graph.BF16} {
		for trans := range 4 {
			ta, tb := trans&1 != 0, trans&2 != 0
			sizes := func(d graph.DType) []graph.Type {
				a, b := graph.T(d, 2, 3, 4), graph.T(d, 4, 5)
				if ta {
					a = graph.T(d, 2, 4, 3)
				}
				if tb {
					b = graph.T(d, 5, 4)
				}
				return []graph.Type{a, b, graph.T(graph.F32, 2, 3, 5)}
			}
			rounded := graph.Case{Inputs: sizes(d)}.Values(uint64(trans))
			product := func(_ *graph.Builder, in map[string]*graph.Value) *graph.Value {
				return op.MatMul(in["a"], in["b"], ta, tb)
			}
			got := gradientsOf(t, map[string]*graph.Tensor{"a": rounded[0], "b": rounded[1], "dy": rounded[2]}, product)
			floats := map[string]*graph.Tensor{}
			for i, typ := range sizes(graph.F32) {
				x := &graph.Tensor{Type: typ, Data: slices.Clone(rounded[i].Data)}
				for j := range x.Data {
					x.Data[j] = d.Round(x.Data[j])
				}
				floats[[]string{"a", "b", "dy"}[i]] = x
			}
			want := gradientsOf(t, floats, product)
			for name := range want {
				assert.Equal(t, want[name], got[name], "%v %v %v %s", d, ta, tb, name)
			}
		}
	}
}

// Casts pass gradients on, through any 16-bit floats and views, in f32 and not rounded.
func TestGradientOfCasts(t *testing.T) {
	x := graph.Case{Inputs: []graph.Type{graph.T(graph.F32, 2, 3), graph.T(graph.F16, 6), graph.T(graph.F32, 3, 2)}}.Values(1)
	got := gradientsOf(t, map[string]*graph.Tensor{"a": x[0], "b": x[1], "dy": x[2]},
		func(_ *graph.Builder, in map[string]*graph.Value) *graph.Value {
			a := op.Reshape(op.Cast(op.Transpose(op.Cast(in["a"], graph.F16)), graph.BF16), 6)
			y := op.Add(op.Cast(a, graph.F32), op.Cast(in["b"], graph.F32))
			return op.Reshape(y, 3, 2)
		})
	assert.Equal(t, &graph.Tensor{Type: graph.T(graph.F32, 6), Data: x[2].Data}, got["b"])
	d := x[2].Data
	assert.Equal(t, &graph.Tensor{Type: graph.T(graph.F32, 2, 3), Data: []float64{d[0], d[2], d[4], d[1], d[3], d[5]}}, got["a"])
}

// The gradient of a loss in 16 bits is f32.
func TestGradientOfFloat16(t *testing.T) {
	_, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.BF16, 3))
		d := autodiff.Gradients(op.Reshape(x, 3, 1), nil, x)[0]
		assert.True(t, d.Type.Equal(graph.T(graph.F32, 3)), "%v", d)
		autodiff.Gradients(x, x, x)
	})
	assert.ErrorContains(t, err, "the gradient that flows into it is bf16[3], expected f32[3]")
}
