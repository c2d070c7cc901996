package compute_test

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAttentionOf16BitFloatsHasTheBitsOfF32 computes attention and its gradient of 16-bit floats, and of the same
// numbers in f32, by each kind of kernel.
func TestAttentionOf16BitFloatsHasTheBitsOfF32(t *testing.T) {
	tier.Rest(t)
	d := testdevice.Translated(t)
	for _, c := range []struct {
		half        graph.DType
		dim, length int
		dev         device.Device
		kernel      string
	}{
		{graph.F16, 3, 5, d, "naive"}, {graph.BF16, 3, 5, d, "rows"}, // scalars, of words that rows share
		{graph.F16, 6, 70, hardware{d}, "rows"}, {graph.BF16, 3, 70, hardware{d}, "tiles"}, // the same, read abreast
		{graph.BF16, 4, 70, d, "rows"}, {graph.F16, 4, 70, hardware{d}, "tiles"}, // vectors, and more than one tile
		{graph.BF16, 44, 70, hardware{d}, "tiles"}, // of several lanes
	} {
		g, types := bothPrecisions(t, c.half, c.length, c.dim)
		out := computed(t, c.dev, g, graph.Case{Inputs: types}.Values(3), named(c.kernel))
		for _, name := range []string{"y", "d0", "d1", "d2"} {
			require.NotEmpty(t, out["16-bit "+name])
			assert.Equal(t, out["f32 "+name], out["16-bit "+name], "%s: %s of %v, %d", name, c.kernel, c.half, c.dim)
		}
	}
}

// bothPrecisions is attention of 16-bit inputs, and of these cast to f32, with the gradients of the inputs.
func bothPrecisions(t *testing.T, half graph.DType, length, dim int) (*graph.Graph, []graph.Type) {
	t.Helper()
	kv := graph.T(half, 2, length, 1, dim)
	types := []graph.Type{graph.T(half, 2, length, 3, dim), kv, kv}
	g, err := graph.Build(func(b *graph.Builder) {
		var narrow, wide []*graph.Value
		for i, typ := range types {
			narrow = append(narrow, b.Input(fmt.Sprint("x", i), typ))
			wide = append(wide, op.Cast(narrow[i], graph.F32))
		}
		for name, in := range map[string][]*graph.Value{"16-bit ": narrow, "f32 ": wide} {
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

// TestAttentionRoundsItsResultAsCastsDo computes attention with a 16-bit result, and with an f32 result that is then
// cast. It computes the gradient from a 16-bit result, and from the same numbers in f32, by each kind of kernel.
func TestAttentionRoundsItsResultAsCastsDo(t *testing.T) {
	d := testdevice.Translated(t)
	for _, c := range []struct {
		half   graph.DType
		dim    int
		dev    device.Device
		kernel string
	}{
		{graph.F16, 4, d, "naive"}, {graph.BF16, 12, d, "rows"}, {graph.BF16, 4, hardware{d}, "rows"},
		{graph.F16, 12, hardware{d}, "tiles"}, {graph.F16, 8, cooperative{Device: d, subgroup: 1, size: square(8)}, "matrices"},
	} {
		kv := graph.T(c.half, 2, 37, 1, c.dim)
		types := []graph.Type{graph.T(c.half, 2, 37, 2, c.dim), kv, kv, graph.T(graph.F32, 2, 37, 2, c.dim)}
		g, err := graph.Build(func(b *graph.Builder) {
			in := inputs(b, types)
			half, single := b.Apply(&op.AttentionOp{Result: c.half}, in[:3]...), b.Apply(new(op.AttentionOp), in[:3]...)
			b.Output("16-bit y", half[0])
			b.Output("f32 y", op.Cast(single[0], c.half))
			for name, o := range map[string]*graph.Value{"16-bit d": half[0], "f32 d": op.Cast(half[0], graph.F32)} {
				for i, d := range b.Apply(new(op.AttentionGradOp), in[0], in[1], in[2], o, half[1], in[3]) {
					b.Output(fmt.Sprint(name, i), d)
				}
			}
		})
		require.NoError(t, err)
		out := computed(t, c.dev, g, graph.Case{Inputs: types}.Values(3), named(c.kernel))
		for _, name := range []string{"y", "d0", "d1", "d2"} {
			require.NotEmpty(t, out["16-bit "+name])
			assert.Equal(t, out["f32 "+name], out["16-bit "+name], "%s: %s of %v, %d", name, c.kernel, c.half, c.dim)
		}
	}
}
