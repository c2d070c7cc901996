package layout

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// overLinks is a problem of four machines with a layer a stage of 40 + 80 ms, 16 microbatches and 2.36 MB a message.
func overLinks(t *testing.T, l *partition.Link, overrides ...string) (config.Config, partition.Problem) {
	t.Helper()
	task := planned(t, append([]string{"train={batch_size: 16, microbatches: 16}", "pipeline={schedule: 2bw, stages: 4, cut: [2, 3, 4]}",
		"model.n_layers=3"}, overrides...)...)
	problem, _, err := task.Problem(t.Context(), nulls(4*task.Config.Pipeline.Replicas, 0), measure.Options{Modelled: true, Between: l})
	require.NoError(t, err)
	for u := range problem.Units {
		problem.Units[u].Out, problem.Units[u].Shared = 1024*576*4, 0
	}
	for i := range problem.Devices {
		d := &problem.Devices[i]
		d.Link = partition.Link{}
		for u := range d.Times {
			d.Times[u] = partition.Time{Forward: 0.02, Backward: 0.04, InputGrad: 0.02, WeightGrad: 0.02} // half a layer
		}
		d.Times[0] = partition.Time{}
		d.Times[len(d.Times)-1] = partition.Time{Forward: 0.04, Backward: 0.08, InputGrad: 0.04, WeightGrad: 0.04}
	}
	return task.Config, problem
}

func TestChooseDepth(t *testing.T) {
	slow := &partition.Link{Latency: 0.05, Bandwidth: 1e9 / 8}
	for _, c := range []struct {
		link      *partition.Link
		overrides []string
		depth     int
		stale     int
		share     float64 // of four devices without links
	}{
		{nil, nil, 0, 3, 1},
		{&partition.Link{Latency: 0.001, Bandwidth: 1e9 / 8}, nil, 0, 3, 1},
		{&partition.Link{Latency: 0.01, Bandwidth: 1e9 / 8}, nil, 3, 6, 1},
		{slow, nil, 3, 6, 1},
		{slow, []string{"pipeline.stale_microbatches=all"}, 3, 16, 1},
		{slow, []string{"pipeline.stale_microbatches=4"}, 1, 4, 0.711},
		{slow, []string{"pipeline.depth=0"}, 0, 3, 0.62},
		{slow, []string{"pipeline.depth=5"}, 5, 8, 1},
		{slow, []string{"pipeline.schedule=zb-h1"}, 0, 0, 0.526},
		{slow, []string{"pipeline.schedule=1f1b"}, 5, 0, 0.713},
		{slow, []string{"pipeline.replicas=2", "train={batch_size: 32, microbatches: 32}"}, 3, 6, 1},
		{&partition.Link{Latency: 0.2, Bandwidth: 1e9 / 8}, nil, 12, 15, 1},
	} {
		cfg, problem := overLinks(t, c.link, c.overrides...)
		chosen, plan, compared, err := ChooseDepth(cfg, problem)
		require.NoError(t, err)
		require.NotEmpty(t, plan.Stages)
		assert.Equal(t, []int{c.depth, c.stale}, []int{chosen.Pipeline.Depth.Number(), chosen.Stale()}, "%+v", c)
		assert.Equal(t, c.depth, plan.Depth)
		batch := 16 * 0.12
		assert.InDelta(t, c.share, batch/plan.StepSeconds, 0.05, "%+v", c)
		for _, d := range compared {
			assert.Equal(t, d.Depth == c.depth, d.Chosen)
			if d.Depth < c.depth {
				assert.Less(t, d.TokensPerSec, plan.TokensPerSec)
			}
		}
		assert.Equal(t, c.link != nil && cfg.Pipeline.Depth == config.DepthAuto, len(compared) > 0)
		g, err := chosen.Schedule(1)
		require.NoError(t, err)
		assert.Equal(t, c.depth, g.Head().Depth)
	}
}

// A depth that the memory does not hold is not chosen.
func TestChooseDepthInMemory(t *testing.T) {
	cfg, problem := overLinks(t, &partition.Link{Latency: 0.05, Bandwidth: 1e9 / 8}, "pipeline.recompute=never")
	_, deep, all, err := ChooseDepth(cfg, problem)
	require.NoError(t, err)
	for i := range problem.Devices {
		problem.Devices[i].Memory = all[0].Largest
	}
	chosen, plan, compared, err := ChooseDepth(cfg, problem)
	require.NoError(t, err)
	assert.Less(t, chosen.Pipeline.Depth.Number(), 3)
	assert.Less(t, plan.Largest(), deep.Largest())
	assert.Less(t, len(compared), 4)
	for _, d := range compared {
		assert.LessOrEqual(t, d.Largest, all[0].Largest)
	}
	for i := range problem.Devices {
		problem.Devices[i].Memory = 1
	}
	_, _, _, err = ChooseDepth(cfg, problem)
	var infeasible *partition.InfeasibleError
	assert.ErrorAs(t, err, &infeasible)
}

func TestDepthsThatAreCompared(t *testing.T) {
	for _, c := range []struct {
		overrides []string
		want      []int
	}{
		{[]string{"train.microbatches=8"}, []int{1, 2, 3, 4, 5, 6}},
		{[]string{"train={batch_size: 64, microbatches: 64}", "pipeline.stages=6"},
			[]int{1, 2, 3, 4, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 58}},
		{[]string{"pipeline.schedule=gpipe"}, nil},
		{[]string{"pipeline.stages=1"}, nil},
	} {
		cfg := planned(t, append([]string{"pipeline.schedule=2bw"}, c.overrides...)...).Config
		assert.Equal(t, c.want, depths(cfg), c.overrides)
	}
	many := depths(planned(t, "pipeline.schedule=2bw", "train={batch_size: 512, microbatches: 512}").Config)
	assert.LessOrEqual(t, len(many), mostDepths)
	assert.Equal(t, []int{1, 2, 3}, many[:3])
	assert.Equal(t, 510, many[len(many)-1])
}
