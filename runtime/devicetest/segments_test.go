package devicetest_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/gpupipe/gpupipe/shaders"
)

// TestSegmentsThatAreOneChangeNoBit runs attention and its gradient by each kind of kernel with one segment and without any.
func TestSegmentsThatAreOneChangeNoBit(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	for dim, length := range map[int]int{3: 5, 4: 70} { // scalars; vectors, and more than one tile
		for _, k := range []struct {
			dev  device.Device
			name string
		}{{d, "naive"}, {d, "rows"}, {hardware{d}, "rows"}, {hardware{d}, "tiles"}} {
			plain := attend(t, k.dev, k.name, length, dim, false)
			assert.Len(t, plain, 4)
			assert.Equal(t, plain, attend(t, k.dev, k.name, length, dim, true), "%s of %d on a %s device", k.name, dim, k.dev.Info().Kind)
		}
	}
}

// attend returns the result of attention and the gradients of its inputs; with segments, all in one.
func attend(t *testing.T, dev device.Device, kernel string, length, dim int, segments bool) map[string][]byte {
	t.Helper()
	kv := graph.T(graph.F32, 2, length, 2, dim)
	types := []graph.Type{graph.T(graph.F32, 2, length, 4, dim), kv, kv, graph.T(graph.U32, 2, length)}
	g, err := graph.Build(func(b *graph.Builder) {
		var in []*graph.Value
		for i, typ := range types {
			in = append(in, b.Input(fmt.Sprint("x", i), typ))
		}
		var y *graph.Value
		if segments {
			y = op.SegmentedAttention(in[0], in[1], in[2], in[3])
		} else {
			y = op.Attention(in[0], in[1], in[2], nil)
		}
		b.Output("y", y)
		for i, d := range autodiff.Gradients(op.Sum(op.Square(y), nil, false), nil, in[:3]...) {
			b.Output(fmt.Sprint("d", i), d)
		}
	})
	require.NoError(t, err)
	values := graph.Case{Inputs: types}.Values(3)
	clear(values[3].Data)
	return compute(t, dev, g, values, named(kernel))
}

// compute returns the outputs of a graph whose inputs are x0, x1, …; the last may be more than it has.
func compute(t *testing.T, dev device.Device, g *graph.Graph, inputs []*graph.Tensor, choose exec.Chooser) map[string][]byte {
	t.Helper()
	g, err := graph.Expand(g)
	require.NoError(t, err)
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"g": g}, exec.Options{Tune: choose})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer s.Close()
	for i := range g.Sources("input") {
		require.NoError(t, s.SetInput("g", fmt.Sprint("x", i), exec.Encode(inputs[i].DType, inputs[i].Data)))
	}
	require.NoError(t, s.Run("g"))
	out := map[string][]byte{}
	for _, o := range g.Outputs {
		read, err := s.Output("g", o.Name)
		require.NoError(t, err)
		out[o.Name], err = read.Wait()
		require.NoError(t, err)
	}
	return out
}

// named chooses the attention kernels of a name.
type named string

func (n named) Choose(_ device.Device, _ string, ks []shaders.Kernel, fallback int) (int, error) {
	i := slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == string(n) })
	if i < 0 {
		return fallback, nil
	}
	return i, nil
}
