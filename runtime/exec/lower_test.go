package exec

import (
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scaled is a graph with kernels of its own for each factor.
func scaled(t *testing.T, factor float64) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Scale(b.Input("x", graph.T(graph.F32, 64)), factor))
	})
	require.NoError(t, err)
	return g
}

// Equal graphs are lowered once for equal limits, also by goroutines at a time.
func TestEqualGraphsAreLoweredOnce(t *testing.T) {
	r := recentGraphs{max: maxRecent}
	lower := func(factor float64, lim target.Limits) *lowered {
		low, err := r.lower(scaled(t, factor), lim)
		require.NoError(t, err)
		return low
	}
	lows := make([]*lowered, 4)
	var all sync.WaitGroup
	for i := range lows {
		all.Go(func() { lows[i] = lower(2, target.DefaultLimits()) })
	}
	all.Wait()
	for _, low := range lows {
		assert.Same(t, lows[0], low)
	}
	assert.NotSame(t, lows[0], lower(3, target.DefaultLimits()))
	wider := target.DefaultLimits()
	wider.MaxInvocations *= 2
	assert.NotSame(t, lows[0], lower(2, wider))
	assert.Len(t, r.entries, 3)
}

// Which graphs are kept depends on the size of their sources and on when they were used.
func TestOldestLoweredGraphsAreForgotten(t *testing.T) {
	r := recentGraphs{max: maxRecent}
	lower := func(factor float64) *lowered {
		low, err := r.lower(scaled(t, factor), target.DefaultLimits())
		require.NoError(t, err)
		return low
	}
	two, three := lower(2), lower(3)
	require.Positive(t, two.size)
	r.max = two.size + three.size
	assert.Same(t, two, lower(2))
	lower(4)
	assert.Same(t, two, lower(2), "used after three")
	assert.NotSame(t, three, lower(3))
	r.max = 1
	lower(5)
	assert.Empty(t, r.entries, "larger than all that is kept")
}
