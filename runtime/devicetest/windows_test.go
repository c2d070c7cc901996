package devicetest_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/gputest"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBlocksOutsideOfWindowsAreNotRead computes attention and its gradient where some keys and values, or some queries,
// are NaN. A kernel that multiplied them by 0, for rows whose windows are elsewhere, would give NaN for these rows.
func TestBlocksOutsideOfWindowsAreNotRead(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	for _, k := range []struct {
		dev    device.Device
		kernel string
		dtype  graph.DType
		dim    int
	}{
		{gputest.Device(t), "native", graph.F32, 16}, {gputest.Device(t), "native", graph.BF16, 3},
		{d, "naive", graph.F32, 4}, {d, "rows", graph.F32, 4}, {hardware{d}, "rows", graph.F32, 4}, {hardware{d}, "tiles", graph.F32, 4},
		{cooperative{Device: d, subgroup: 1, size: square(8)}, "matrices", graph.F16, 8},
	} {
		for _, segments := range []bool{false, true} {
			kv := graph.T(k.dtype, 2, documentsLength, 1, k.dim)
			types := []graph.Type{graph.T(k.dtype, 2, documentsLength, 2, k.dim), kv, kv, graph.T(graph.U32, 2, documentsLength)}
			s := load(t, k.dev, windowGraph(t, types, segments, 40), named(k.kernel))
			for _, c := range []struct {
				input, from, past int
				numbers           map[string][3]bool // which thirds of the sequence hold numbers only
			}{
				{2, 0, 64, map[string][3]bool{"y": {false, false, true}, "d0": {false, false, true}, "d1": {false, false, true}, "d2": {false, false, true}}},
				{0, 128, documentsLength, map[string][3]bool{"y": {true, true, false}, "d0": {true, true, false}, "d1": {true, false, false}, "d2": {true, false, false}}},
			} {
				in := graph.Case{Inputs: types}.Values(3)
				clear(in[3].Data)
				row := in[c.input].Shape[2] * k.dim
				for b := range 2 {
					for i := c.from * row; i < c.past*row; i++ {
						in[c.input].Data[b*documentsLength*row+i] = math.NaN()
					}
				}
				g := windowGraph(t, types, segments, 40)
				for name, bits := range outputs(t, s, g, in) {
					assert.Equal(t, c.numbers[name], numbersIn(bits), "%s, NaN in input %d, %s of %v on %s, segments %v", name, c.input, k.kernel, k.dtype, k.dev.Info().Name, segments)
				}
			}
			require.NoError(t, s.Close())
		}
	}
}

// windowGraph is attentionGraph with a window, expanded.
func windowGraph(t *testing.T, types []graph.Type, segments bool, window int) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		in := inputs(b, types)
		var last *graph.Value
		if segments {
			last = in[3]
		}
		y := (&op.AttentionOp{Window: window}).Apply(in[0], in[1], in[2], last)
		b.Output("y", y)
		for i, d := range autodiff.Gradients(op.Sum(op.Square(y), nil, false), nil, in[:3]...) {
			b.Output(fmt.Sprint("d", i), d)
		}
	})
	require.NoError(t, err)
	g, err = graph.Expand(g)
	require.NoError(t, err)
	return g
}

// TestWindowsOfACache decodes with a window. One that holds the whole cache gives the bits of none, and with a shorter
// one what the cache holds before the window is not read.
func TestWindowsOfACache(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	const cache, position = 1200, 1150
	for _, dim := range []int{4, 5} {
		kv := graph.T(graph.F32, 1, cache, 1, dim)
		types := []graph.Type{graph.T(graph.F32, 1, 2, 3, dim), kv, kv, graph.T(graph.U32, 1)}
		for _, k := range []struct {
			dev    device.Device
			kernel string
		}{{gputest.Device(t), "native"}, {d, "naive"}, {d, "rows"}, {hardware{d}, "keys"}} {
			in := graph.Case{Inputs: types}.Values(3)
			in[3].Data[0] = position
			decode := func(window int) map[string][]byte {
				g, err := graph.Build(func(b *graph.Builder) {
					in := inputs(b, types)
					b.Output("y", (&op.AttentionOp{Window: window}).Apply(in[0], in[1], in[2], in[3]))
				})
				require.NoError(t, err)
				return compute(t, k.dev, g, in, named(k.kernel))
			}
			assert.Equal(t, decode(0), decode(cache), k.kernel)
			const window = 70
			numbers := decode(window)
			for i := range (position + 1 - window) * dim {
				in[1].Data[i], in[2].Data[i] = math.NaN(), math.NaN()
			}
			if k.kernel != "rows" { // rows read whole blocks, which are finite in a cache
				assert.Equal(t, numbers, decode(window), k.kernel)
			}
		}
	}
}
