package partition

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	gigabit  = 1e9 / 8        // bytes per second
	boundary = 1024 * 576 * 4 // bytes of an activation
)

// apart is a pipeline of four stages of 40 + 80 ms, each in a machine of its own.
func apart(t *testing.T, depth int, l Link) Problem {
	t.Helper()
	o := schedule.Options{Stages: 4, Microbatches: 16, Depth: depth}
	o.Batches = o.SteadyBatches()
	g, err := schedule.New(schedule.TwoBW, o)
	require.NoError(t, err)
	s, err := g.SplitBackward().Schedule()
	require.NoError(t, err)
	p := Problem{Schedule: s, Tokens: 16, Network: Uniform(4, l)}
	for i := range 4 {
		p.Units = append(p.Units, Unit{Name: "unit", Out: boundary, Kept: 100})
		d := Device{Name: fmt.Sprint("gpu of machine ", i)}
		for range 4 {
			d.Times = append(d.Times, Time{Forward: 0.04, Backward: 0.08, InputGrad: 0.04, WeightGrad: 0.04})
		}
		d.Times[0] = Time{Forward: 0.04, Backward: 0.08, WeightGrad: 0.08}
		p.Devices = append(p.Devices, d)
	}
	p.Units[3].Out = 0
	return p
}

// The predicted throughput over links, as a share of that of four devices without links.
func TestPredictionOverLinks(t *testing.T) {
	for _, c := range []struct {
		gbit, latency float64
		depth         int
		want          float64
	}{{1, 0.001, 0, 1}, {1, 0.010, 0, 0.9}, {1, 0.010, 3, 1}, {1, 0.050, 0, 0.62}, {1, 0.050, 3, 1}, {0.2, 0.010, 0, 0.48},
		{0.2, 0.010, 4, 0.636}} {
		p := apart(t, c.depth, Link{Latency: c.latency, Bandwidth: c.gbit * gigabit})
		plan, err := Choose(p)
		require.NoError(t, err)
		assert.InDelta(t, c.want, plan.TokensPerSec*0.12, 0.005, "%+v", c)
		assert.Equal(t, c.depth, plan.Depth)
	}
	p := apart(t, 3, Link{Latency: 0.01, Bandwidth: 0.2 * gigabit})
	p.Wire.Activations = wire.BF16
	plan, err := Choose(p)
	require.NoError(t, err)
	assert.InDelta(t, 1, plan.TokensPerSec*0.12, 0.005)
}

// A deeper pipeline keeps more activations, on each stage as many more as it has microbatches in flight.
func TestDepthTakesMemory(t *testing.T) {
	var memory [2][]int64
	for i, depth := range []int{0, 6} {
		plan, err := Choose(apart(t, depth, Link{}))
		require.NoError(t, err)
		for _, s := range plan.Stages {
			memory[i] = append(memory[i], s.Memory.Total())
		}
	}
	for s, more := range []int64{6, 4, 2, 0} {
		entering := int64(boundary)
		if s == 0 {
			entering = 0
		}
		assert.Equal(t, more*(100+entering), memory[1][s]-memory[0][s], "stage %d", s)
	}
}

// Stages in one machine pass messages without the network. The machines' order is chosen so that slow links are few.
func TestOrderOfMachines(t *testing.T) {
	p := apart(t, 0, Link{Latency: 1})
	p.Network.Machines = []int{0, 1, 0, 1}
	plan, err := Choose(p)
	require.NoError(t, err)
	assert.Equal(t, []int{0, 2, 1, 3}, plan.Devices)
	p.KeepOrder = true
	given, err := Choose(p)
	require.NoError(t, err)
	assert.InDelta(t, 16*(4*0.12-3*0.04+6)/4, given.StepSeconds, 1e-2, "three slow links")
	assert.InDelta(t, 16*(2*0.12-0.04+2)/2, plan.StepSeconds, 1e-2, "one")
	p.Network.Machines = []int{0, 0, 0, 0}
	one, err := Choose(p)
	require.NoError(t, err)
	assert.InDelta(t, 16*0.12, one.StepSeconds, 1e-9)
}

// Without depth and with few stale microbatches, tied embeddings over a slow link are waited for.
func TestTiedEmbeddingsOverLinks(t *testing.T) {
	p := apart(t, 0, Link{Bandwidth: gigabit})
	untied, err := Choose(p)
	require.NoError(t, err)
	p.Units[3].Shared = gigabit // bytes: a second each way
	tied, err := Choose(p)
	require.NoError(t, err)
	assert.Greater(t, tied.StepSeconds, untied.StepSeconds+0.5)
}

// Replicas exchange all gradients and weights, over the slowest link of a stage.
func TestReplicasOverLinks(t *testing.T) {
	p := apart(t, 0, Link{Latency: 0.5, Bandwidth: gigabit})
	p.Units[2].Parameters, p.Replicas = gigabit, 2
	plan, err := Choose(p)
	require.NoError(t, err)
	assert.InDelta(t, 2.5, plan.Stages[2].Exchange, 1e-9, "a second there, one back")
}

func TestOneReplicaOfANetwork(t *testing.T) {
	l := func(latency, bandwidth float64) Link { return Link{latency, bandwidth} }
	w := &Network{Machines: []int{0, 0, 1, 0, 2, 3}, Links: make([][]Link, 6)} // two replicas of three stages
	for i := range w.Links {
		w.Links[i] = make([]Link, 6)
	}
	w.Links[0][2], w.Links[3][5] = l(1, 20), l(2, 30)
	w.Links[3][4], w.Links[1][2], w.Links[4][5] = l(3, 0), l(4, 9), l(5, 0)
	one := w.OneReplica(3)
	assert.Equal(t, []int{0, 1, 2}, one.Machines, "stages 0 and 1 are in one machine in the first replica only")
	assert.Equal(t, [][]Link{{{}, l(3, 0), l(2, 20)}, {{}, {}, l(5, 9)}, {{}, {}, {}}}, one.Links)
	w.Machines[4] = 0
	assert.Equal(t, []int{0, 0, 2}, w.OneReplica(3).Machines)
	assert.Same(t, w, w.OneReplica(6))
	assert.Nil(t, (*Network)(nil).OneReplica(1))

	back := w.Reordered([]int{5, 4, 3, 2, 1, 0})
	assert.Equal(t, []int{3, 0, 0, 1, 0, 0}, back.Machines)
	assert.Equal(t, l(2, 30), back.Links[2][0])
	assert.Nil(t, (*Network)(nil).Reordered(nil))
}
