//go:build linux && cgo

package cpu_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// variant is a Chooser of the n-th kernel that multiplies by vectors, and notes its name. Matrix units, the kernels for
// few rows and naive ones add in other orders.
type variant struct {
	n    int
	name string // "": there are fewer
}

func (v *variant) Choose(_ device.Device, _ string, ks []shaders.Kernel, fallback int) (int, error) {
	n := 0
	for i, k := range ks {
		base, _, _ := strings.Cut(k.Name, " split ")
		if !slices.Contains([]string{"native", "native packed", "native direct"}, base) {
			continue
		}
		if n == v.n {
			v.name = k.Name
			return i, nil
		}
		n++
	}
	return fallback, nil
}

// Kernels that differ in what they pack have the same bits, so the choice among them is free.
func TestPackedProductsHaveEqualBits(t *testing.T) {
	cache := t.TempDir()
	for name, s := range map[string]struct {
		m, n, k    int
		transposed bool
	}{"whole": {100, 64, 96, false}, "blocks": {50, 48, 1100, false}, "split": {48, 48, 1500, true}} {
		g, err := graph.Build(func(b *graph.Builder) {
			x := graph.T(graph.F32, s.m, s.k)
			if s.transposed {
				x = graph.T(graph.F32, s.k, s.m)
			}
			b.Output("y", op.MatMul(b.Input("x", x), b.Input("w", graph.T(graph.F32, s.k, s.n)), s.transposed, false))
		})
		require.NoError(t, err)
		var first string
		names := 0
		for ; ; names++ {
			v := &variant{n: names}
			out := product(t, cache, g, v)
			if v.name == "" {
				break
			}
			if names == 0 {
				first = out
			}
			assert.True(t, first == out, "%s: %s", name, v.name)
		}
		assert.Equal(t, 2, names, "%s: one reads B as it lies", name)
	}
}

// product is the result of a program on noise.
func product(t *testing.T, cache string, g *graph.Graph, tune exec.Chooser) string {
	d, err := cpu.Open(cpu.Options{Threads: 2, CacheDir: cache})
	require.NoError(t, err)
	defer d.Close()
	p, err := exec.NewPlan(d, map[string]*graph.Graph{"p": g}, exec.Options{Tune: tune})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer s.Close()
	for i, v := range g.Sources("input") {
		data := make([]float64, v.Shape.Len())
		for k := range data {
			data[k] = float64((k*7919+i*104729)%2003-1001) / 1000
		}
		require.NoError(t, s.SetInput("p", v.Node.Op.(graph.Source).Label(), exec.Encode(graph.F32, data)))
	}
	require.NoError(t, s.Run("p"))
	return outputs(t, s, "p", "y")[0]
}
