package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A batch is complete with the routing of all microbatches of all virtual stages. Loads are added, statistics averaged.
func TestRoutingIsCollected(t *testing.T) {
	routers := []Router{{1, []int{2, 3}, 14}, {4, []int{7}, 7}}
	c := NewCollector(0, 2, true, routers)
	add := func(x Result) []Measured {
		t.Helper()
		complete, err := c.Add(x)
		require.NoError(t, err)
		return complete
	}
	row := func(a, b, entropy, least, most float32) []float32 { return []float32{a, b, entropy, 2, 3, least, most} }
	assert.Empty(t, add(Result{Microbatch: 1, VirtualStage: 4, Routing: row(6, 0, 1, -1, 1)}))
	assert.Empty(t, add(Result{Microbatch: 0, VirtualStage: 1, Routing: append(row(2, 4, 0.5, 0, 0), row(5, 1, 0, 0, 0)...)}))
	assert.Empty(t, add(Result{Microbatch: 0, Losses: []float32{2}}))
	assert.Empty(t, add(Result{Microbatch: 1, Losses: []float32{4}}))
	assert.Empty(t, add(Result{Norm: 1}))
	assert.Empty(t, add(Result{Microbatch: 1, VirtualStage: 1, Routing: append(row(3, 3, 0.25, 0, 0), row(5, 1, 0, 0, 0)...)}))
	for _, x := range []Result{
		{Microbatch: 1, VirtualStage: 1, Routing: make([]float32, 14)}, {Microbatch: 0, VirtualStage: 2, Routing: make([]float32, 14)},
		{Microbatch: 2, VirtualStage: 4, Routing: make([]float32, 7)}, {Microbatch: 0, VirtualStage: 4, Routing: make([]float32, 8)},
	} {
		_, err := c.Add(x)
		assert.ErrorContains(t, err, "routing")
	}
	complete := add(Result{Microbatch: 0, VirtualStage: 4, Routing: row(6, 0, 0, -2, 0)})
	require.Len(t, complete, 1)
	assert.Equal(t, 3.0, complete[0].Loss)
	want := []Routing{{Layer: 2, Load: []float64{5, 7}, Entropy: 0.375, Aux: 2, Z: 3}, {Layer: 3, Load: []float64{10, 2}, Aux: 2, Z: 3},
		{Layer: 7, Load: []float64{12, 0}, Entropy: 0.5, Aux: 2, Z: 3, BiasMin: -2, BiasMax: 1}}
	assert.Equal(t, want, complete[0].Routing)
	assert.InDelta(t, 14.0/12, want[0].Peak(), 1e-12)
	assert.Equal(t, 2.0, want[2].Peak())
	assert.Equal(t, []int{0, 1}, []int{want[0].Idle(), want[2].Idle()})
}
