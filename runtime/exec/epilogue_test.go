package exec_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nth takes a kernel's n-th candidate, and remembers whether any kernel had one.
type nth struct {
	n    int
	some bool
}

func (c *nth) Choose(_ device.Device, _ string, ks []shaders.Kernel, fallback int) (int, error) {
	if c.n < len(ks) {
		c.some = true
		return c.n, nil
	}
	return fallback, nil
}

// Every candidate of a matrix product whose epilogue reads the operands: they may be bound in other places, as vectors,
// or as packed copies only.
func TestEpiloguesThatReadTheOperands(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, dev.Close()) }()
	epilogues := map[string]func(x, y *graph.Value) *graph.Value{
		"right": func(x, y *graph.Value) *graph.Value { return op.Add(y, op.MatMul(x, y, false, true)) },
		"both":  func(x, y *graph.Value) *graph.Value { return op.Sub(op.Mul(x, y), op.MatMul(x, y, true, false)) },
		"same":  func(x, y *graph.Value) *graph.Value { return op.Add(y, op.Add(x, op.MatMul(x, x, false, false))) },
	}
	for name, epilogue := range epilogues {
		for _, n := range []int{16, 19} {
			typ := graph.T(graph.F32, 2, n, n)
			g, err := graph.Build(func(b *graph.Builder) {
				b.Output("z", epilogue(b.Input("x", typ), b.Input("y", typ)))
			})
			require.NoError(t, err)
			in := map[string]*graph.Tensor{"x": graph.NewTensor(typ), "y": graph.NewTensor(typ)}
			for i := range in["x"].Data {
				in["x"].Data[i], in["y"].Data[i] = float64(float32(math.Sin(float64(i*i)))), float64(float32(math.Cos(float64(3*i*i))))
			}
			want, err := eval.Run(g, in, map[string]*graph.Tensor{})
			require.NoError(t, err)
			for i, c := 0, (&nth{some: true}); c.some; i++ {
				c = &nth{n: i}
				got := evaluate(t, dev, g, in, c)
				assert.InDeltaSlice(t, want["z"].Data, got, 1e-4, fmt.Sprintf("%s, %d, candidate %d", name, n, i))
			}
		}
	}
}

// evaluate runs a graph on a device and returns its output z.
func evaluate(t *testing.T, dev device.Device, g *graph.Graph, in map[string]*graph.Tensor, c exec.Chooser) (z []float64) {
	t.Helper()
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": g}, exec.Options{Tune: c})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for _, v := range g.Sources("input") {
		name := v.Node.Op.(graph.Source).Label()
		var x []float32
		for _, f := range in[name].Data {
			x = append(x, float32(f))
		}
		require.NoError(t, s.SetInput("p", name, exec.F32Bytes(x)))
	}
	require.NoError(t, s.Run("p"))
	read, err := s.Output("p", "z")
	require.NoError(t, err)
	b, err := read.Wait()
	require.NoError(t, err)
	for _, f := range exec.ToF32(b) {
		z = append(z, float64(f))
	}
	return z
}
