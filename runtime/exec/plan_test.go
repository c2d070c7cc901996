package exec_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counting is a Chooser that is asked and keeps the static choice.
type counting struct{ asked int }

func (c *counting) Choose(_ device.Device, _ string, _ []shaders.Kernel, fallback int) (int, error) {
	c.asked++
	return fallback, nil
}

// Timing a kernel allocates its arrays, so a plan that does not fit is refused before any is timed.
func TestTooLargePlanIsRefusedBeforeKernelsAreTimed(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		x, y := b.Variable("x", graph.T(graph.F32, 64, 64)), b.Variable("y", graph.T(graph.F32, 64, 64))
		b.Output("z", op.MatMul(x, y, false, false))
	})
	require.NoError(t, err)
	graphs := map[string]*graph.Graph{"main": g}

	dev := null.New(null.Options{})
	tune := &counting{}
	p, err := exec.NewPlan(dev, graphs, exec.Options{Tune: tune})
	require.NoError(t, err)
	require.Positive(t, tune.asked)

	refused := &counting{}
	_, err = exec.NewPlan(dev, graphs, exec.Options{Tune: refused, Budget: p.Memory().Total - 1})
	assert.ErrorIs(t, err, exec.ErrTooLarge)
	assert.Zero(t, refused.asked)
}

// A tensor that no binding can hold does not fit either, whatever the budget.
func TestTensorBeyondABindingIsTooLarge(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Exp(b.Variable("x", graph.T(graph.F32, 1<<26))))
	})
	require.NoError(t, err)
	_, err = exec.NewPlan(null.New(null.Options{}), map[string]*graph.Graph{"main": g}, exec.Options{})
	assert.ErrorIs(t, err, exec.ErrTooLarge)
	assert.ErrorContains(t, err, "268435456 bytes in one piece, the device binds at most 134217728")
}
