package devicetest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// TestAttentionOfHalvesHasTheBitsOfSingles computes attention and its gradient of halves, and of the same numbers in f32, by each
// kind of kernel.
func TestAttentionOfHalvesHasTheBitsOfSingles(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	for _, c := range []struct {
		half        graph.DType
		dim, length int
		dev         device.Device
		kernel      string
	}{
		{graph.F16, 3, 5, d, "naive"}, {graph.BF16, 3, 5, d, "rows"}, // scalars, of words that rows share
		{graph.BF16, 4, 70, d, "rows"}, {graph.F16, 4, 70, hardware{d}, "tiles"}, // vectors, and more than one tile
	} {
		g, types := bothPrecisions(t, c.half, c.length, c.dim)
		out := compute(t, c.dev, g, graph.Case{Inputs: types}.Values(3), named(c.kernel))
		for _, name := range []string{"y", "d0", "d1", "d2"} {
			require.NotEmpty(t, out["half "+name])
			assert.Equal(t, out["single "+name], out["half "+name], "%s: %s of %v, %d", name, c.kernel, c.half, c.dim)
		}
	}
}

// bothPrecisions is attention of inputs of halves, and of these cast to f32, with the gradients of the inputs.
func bothPrecisions(t *testing.T, half graph.DType, length, dim int) (*graph.Graph, []graph.Type) {
	t.Helper()
	kv := graph.T(half, 2, length, 1, dim)
	types := []graph.Type{graph.T(half, 2, length, 3, dim), kv, kv}
	g, err := graph.Build(func(b *graph.Builder) {
		var halves, singles []*graph.Value
		for i, typ := range types {
			halves = append(halves, b.Input(fmt.Sprint("x", i), typ))
			singles = append(singles, op.Cast(halves[i], graph.F32))
		}
		for name, in := range map[string][]*graph.Value{"half ": halves, "single ": singles} {
			y := op.Attention(in[0], in[1], in[2], nil)
			b.Output(name+"y", y)
			for i, d := range autodiff.Gradients(op.Sum(op.Square(y), nil, false), nil, in...) {
				b.Output(fmt.Sprint(name, "d", i), d)
			}
		}
	})
	require.NoError(t, err)
	return g, types
}
