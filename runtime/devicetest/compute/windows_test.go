package compute_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBlocksOutsideOfWindowsAreNotRead computes attention and its gradient where some keys and values, or some queries,
// are NaN. A kernel that multiplied them by 0, for rows whose windows are elsewhere, would give NaN for these rows.
func TestBlocksOutsideOfWindowsAreNotRead(t *testing.T) {
	tier.Rest(t)
	d := testdevice.Translated(t)
	type kernel struct {
		dev      device.Device
		kernel   string
		dtype    graph.DType
		dim      int
		segments bool
	}
	kernels := []kernel{
		{testdevice.Device(t), "native", graph.F32, 16, false}, {testdevice.Device(t), "native", graph.BF16, 3, true},
		{d, "rows", graph.F32, 4, false}, {hardware{d}, "rows", graph.F32, 4, true}, {hardware{d}, "tiles", graph.F32, 4, false},
		{cooperative{Device: d, subgroup: 1, size: square(8)}, "matrices", graph.F16, 8, false},
	}
	if hasPairs(t) {
		kernels = append(kernels, kernel{testdevice.Device(t), pairs, graph.BF16, 16, false})
	}
	for _, k := range kernels {
		t.Run(fmt.Sprintf("%s of %v on %s", k.kernel, k.dtype, k.dev.Info().Name), func(t *testing.T) {
			kv := graph.T(k.dtype, 2, documentsLength, 1, k.dim)
			types := []graph.Type{graph.T(k.dtype, 2, documentsLength, 2, k.dim), kv, kv, graph.T(graph.U32, 2, documentsLength)}
			g, err := graph.Expand(attentionGraph(t, types, k.segments, 40))
			require.NoError(t, err)
			s := load(t, k.dev, g, named(k.kernel))
			for _, c := range []struct {
				input, from, past int
				numbers           map[string][3]bool // which thirds of the sequence hold numbers only
			}{
				{2, 0, 64, map[string][3]bool{"y": {false, false, true}, "d0": {false, false, true}, "d1": {false, false, true},
					"d2": {false, false, true}}},
				{0, 128, documentsLength, map[string][3]bool{"y": {true, true, false}, "d0": {true, true, false},
					"d1": {true, false, false}, "d2": {true, false, false}}},
			} {
				in := graph.Case{Inputs: types}.Values(3)
				clear(in[3].Data)
				row := in[c.input].Shape[2] * k.dim
				for b := range 2 {
					for i := c.from * row; i < c.past*row; i++ {
						in[c.input].Data[b*documentsLength*row+i] = math.NaN()
					}
				}
				for name, bits := range outputs(t, s, g, in) {
					assert.Equal(t, c.numbers[name], numbersIn(bits), "%s with NaN in input %d", name, c.input)
				}
			}
			require.NoError(t, s.Close())
		})
	}
}

// TestWindowsOfACache decodes with a window. One that holds the whole cache gives the bits of none, and with a shorter
// one what the cache holds before the window is not read.
func TestWindowsOfACache(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	const cache, position, dim = 1200, 1150, 4
	kv := graph.T(graph.F32, 1, cache, 1, dim)
	types := []graph.Type{graph.T(graph.F32, 1, 2, 3, dim), kv, kv, graph.T(graph.U32, 1)}
	for _, k := range []struct {
		dev    device.Device
		kernel string
	}{{testdevice.Device(t), "native"}, {d, "naive"}, {d, "rows"}, {hardware{d}, "keys"}} {
		in := graph.Case{Inputs: types}.Values(3)
		in[3].Data[0] = position
		decode := func(window int) map[string][]byte {
			g, err := graph.Build(func(b *graph.Builder) {
				in := inputs(b, types)
				b.Output("y", (&op.AttentionOp{Form: op.FromPosition, Window: window}).Apply(in[0], in[1], in[2], in[3]))
			})
			require.NoError(t, err)
			return computed(t, k.dev, g, in, named(k.kernel))
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
