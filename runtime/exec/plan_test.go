package exec_test

import (
	"slices"
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

// greedy chooses what takes most scratch memory.
type greedy struct{}

func (greedy) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	most := func(a, b shaders.Kernel) int { return slices.Compare(a.Scratch, b.Scratch) }
	return slices.IndexFunc(ks, func(k shaders.Kernel) bool { return most(k, slices.MaxFunc(ks, most)) == 0 }), nil
}

// A plan that fits is not refused because faster kernels need more memory.
func TestWhatFitsByTheStaticChoiceIsNotRefused(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Sum(b.Input("x", graph.T(graph.F32, 4096, 200)), []int{1}, false))
	})
	require.NoError(t, err)
	graphs := map[string]*graph.Graph{"main": g}
	dev := null.New(null.Options{})
	static, err := exec.NewPlan(dev, graphs, exec.Options{})
	require.NoError(t, err)
	tuned, err := exec.NewPlan(dev, graphs, exec.Options{Tune: greedy{}})
	require.NoError(t, err)
	require.Greater(t, tuned.Memory().Total, static.Memory().Total)
	p, err := exec.NewPlan(dev, graphs, exec.Options{Tune: greedy{}, Budget: static.Memory().Total})
	require.NoError(t, err)
	assert.Equal(t, static.Kernels("main"), p.Kernels("main"))
	var s *exec.Shortage
	require.ErrorAs(t, p.Untuned(), &s)
	assert.Equal(t, &exec.Shortage{Needed: tuned.Memory(), Available: static.Memory().Total}, s)
	assert.ErrorIs(t, p.Untuned(), exec.ErrTooLarge)
	assert.NoError(t, static.Untuned())
	assert.NoError(t, tuned.Untuned())
}

// A tensor larger than a binding does not fit, whatever the budget.
func TestTensorBeyondABindingIsTooLarge(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Exp(b.Variable("x", graph.T(graph.F32, 1<<26))))
	})
	require.NoError(t, err)
	_, err = exec.NewPlan(null.New(null.Options{}), map[string]*graph.Graph{"main": g}, exec.Options{})
	assert.ErrorIs(t, err, exec.ErrTooLarge)
	assert.ErrorContains(t, err, "256 MiB in one piece, the device binds at most 128 MiB")
}
