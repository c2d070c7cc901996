package exec_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// step reads x and g, and writes x − g over g: what an update does while the old weights are still in use.
func step(t *testing.T) *graph.Graph {
	g, err := graph.Build(func(b *graph.Builder) {
		x, g := b.Variable("x", graph.T(graph.F32, 64)), b.Variable("g", graph.T(graph.F32, 64))
		b.Assign(g, op.Sub(x, g))
	})
	require.NoError(t, err)
	return g
}

func pools(size int) map[string]exec.Pool {
	return map[string]exec.Pool{"x": {Name: "x", Class: "weights", Size: size}, "g": {Name: "x", Class: "gradients", Size: size}}
}

func TestPoolsShareBuffers(t *testing.T) {
	dev := null.New(null.Options{})
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"step": step(t)}, exec.Options{Pools: pools(3)})
	require.NoError(t, err)
	assert.EqualValues(t, 3*64*4, p.Memory().Total)
	s, err := p.Load()
	require.NoError(t, err)
	allocated, _ := dev.Allocated()
	assert.EqualValues(t, p.Memory().Total, allocated)
	for i := range 6 {
		require.NoError(t, s.RunAt("step", exec.Binding{"weights": i % 3, "gradients": (i + 1) % 3}))
	}
	assert.EqualValues(t, 6, dev.Counts().Dispatches)
	assert.EqualValues(t, 0, dev.Counts().Copies)
	require.NoError(t, s.WriteAt("x", exec.Binding{"weights": 2}, make([]byte, 64*4)))
	require.NoError(t, s.Close())
	allocated, _ = dev.Allocated()
	assert.Zero(t, allocated)
}

func TestBindingsAreChecked(t *testing.T) {
	dev := null.New(null.Options{})
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"step": step(t)}, exec.Options{Pools: pools(2)})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	assert.ErrorContains(t, s.Run("step"), `class "gradients" needs a buffer index`)
	assert.ErrorContains(t, s.RunAt("step", exec.Binding{"weights": 0, "gradients": 2}), `no variable "g" with index 2`)
	assert.Error(t, s.RunAt("step", exec.Binding{"weights": 1, "gradients": 1}), "one buffer for two variables")
	_, err = s.ReadAt("x", nil)
	assert.ErrorContains(t, err, `class "weights" needs a buffer index`)
	require.NoError(t, s.Close())
}
