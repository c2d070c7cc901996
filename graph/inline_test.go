package graph_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInlinedGraphsAreThoseWrittenInPlace(t *testing.T) {
	pair := graph.T(graph.F32, 2)
	write := func(b *graph.Builder, x *graph.Value) *graph.Value {
		return op.Add(op.Exp(x), b.Constant("c", pair, []float64{1, 2}))
	}
	small, err := graph.Build(func(b *graph.Builder) { b.Output("y", write(b, b.Input("x", pair))) })
	require.NoError(t, err)
	whole := func(write func(b *graph.Builder, x *graph.Value) *graph.Value) string {
		g, err := graph.Build(func(b *graph.Builder) {
			x := op.Neg(b.Variable("w", pair))
			b.Scope("head", func() { b.Output("z", op.Square(write(b, x))) })
		})
		require.NoError(t, err)
		h, err := graph.Hash(g)
		require.NoError(t, err)
		return h
	}
	assert.Equal(t, whole(write), whole(func(b *graph.Builder, x *graph.Value) *graph.Value {
		return b.Inline(small, map[string]*graph.Value{"x": x})["y"]
	}))

	for _, inputs := range []func(b *graph.Builder) map[string]*graph.Value{
		func(*graph.Builder) map[string]*graph.Value { return nil },
		func(b *graph.Builder) map[string]*graph.Value {
			return map[string]*graph.Value{"x": b.Input("x", graph.T(graph.F32, 3))}
		},
	} {
		_, err = graph.Build(func(b *graph.Builder) { b.Inline(small, inputs(b)) })
		assert.ErrorContains(t, err, `inline: input "x" is f32[2], given is`)
	}
}
