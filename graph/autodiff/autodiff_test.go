package autodiff_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gradients evaluates what f returns, at x = (2, 3).
func gradients(t *testing.T, f func(b *graph.Builder, x *graph.Value) []*graph.Value) [][]float64 {
	t.Helper()
	var n int
	g, err := graph.Build(func(b *graph.Builder) {
		for i, v := range f(b, b.Input("x", graph.T(graph.F32, 2))) {
			b.Output(string(rune('a'+i)), v)
			n++
		}
	})
	require.NoError(t, err)
	in := &graph.Tensor{Type: graph.T(graph.F32, 2), Data: []float64{2, 3}}
	out, err := eval.Run(g, map[string]*graph.Tensor{"x": in}, nil)
	require.NoError(t, err)
	var all [][]float64
	for i := range n {
		all = append(all, out[string(rune('a'+i))].Data)
	}
	return all
}

// A value that is used on several paths gathers the gradients of all, and so does one used twice by one op.
func TestPathsAddUp(t *testing.T) {
	got := gradients(t, func(_ *graph.Builder, x *graph.Value) []*graph.Value {
		y := op.Mul(x, x)
		return autodiff.Gradients(op.Add(op.Mul(y, x), y), nil, x, y) // x³ + x²
	})
	assert.Equal(t, [][]float64{{3*4 + 2*2, 3*9 + 2*3}, {2 + 1, 3 + 1}}, got)
}

func TestSeedScalesTheGradient(t *testing.T) {
	got := gradients(t, func(b *graph.Builder, x *graph.Value) []*graph.Value {
		return autodiff.Gradients(op.Square(x), b.Constant("seed", x.Type, []float64{10, -1}), x)
	})
	assert.Equal(t, [][]float64{{40, -6}}, got)
}

func TestNoPathNoGradient(t *testing.T) {
	_, err := graph.Build(func(b *graph.Builder) {
		x, y := b.Input("x", graph.T(graph.F32)), b.Input("y", graph.T(graph.F32))
		step := op.Cast(op.Cast(y, graph.U32), graph.F32)
		d := autodiff.Gradients(op.Mul(x, step), nil, x, y)
		assert.NotNil(t, d[0])
		assert.Nil(t, d[1], "no gradient flows through integers")
	})
	require.NoError(t, err)
}

func TestLossMustBeFloat(t *testing.T) {
	_, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32))
		autodiff.Gradients(op.IsFinite(x), nil, x)
	})
	assert.ErrorContains(t, err, "no gradient")
}
