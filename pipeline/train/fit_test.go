package train_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sized opens null devices with the given memory by name. Others have no limit.
func sized(budgets map[string]int64) layout.OpenDevice {
	return func(name string) (device.Device, error) {
		return null.New(null.Options{Name: name, MemoryBudget: budgets[name]}), nil
	}
}

// If a later replica has less memory than the first, all replicas are cut so that it fits.
func TestReplicasAreCutForTheSmallest(t *testing.T) {
	replicas := []string{"pipeline.replicas=2", "pipeline.schedule=1f1b", "pipeline.recompute=never", "train.steps=2", "train.eval_every=0",
		"pipeline.devices=[null:0, null:1, null:2, null:3]"}
	c := planned(t, replicas...)
	free, err := layout.Task{Config: c, Model: c.Model.Config}.Partition(context.Background(), nulls(4, 0), measure.Options{})
	require.NoError(t, err)
	assert.Equal(t, "null:0 and null:2", free.Stages[0].Device)
	small := map[string]int64{"null:2": free.Stages[0].Memory.Total() * 9 / 10}

	n := &runtest.Notes{}
	_, err = train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: sized(small)}, Report: n})
	require.NoError(t, err)
	assert.Less(t, n.Started.Ranks[0].Units[0][1], free.Cut[0])
	assert.Equal(t, n.Started.Ranks[0].Units, n.Started.Ranks[2].Units)
	assert.LessOrEqual(t, n.Started.Ranks[2].Memory.Total, small["null:2"])

	p, err := train.CompareSchedules(context.Background(), c, sized(small), measure.Options{})
	require.NoError(t, err)
	require.Len(t, p.Devices, 4)
	for i, d := range p.Devices {
		assert.Equal(t, fmt.Sprint("null:", i), d.Name)
		assert.Equal(t, small[d.Name], d.Memory)
	}
	for _, s := range p.Schedules {
		for _, stage := range s.Plan.Stages {
			assert.Equal(t, map[string]int64{"null:0 and null:2": small["null:2"], "null:1 and null:3": 0}[stage.Device], stage.Available,
				s.Schedule)
		}
	}

	c = planned(t, replicas...)
	small = map[string]int64{"null:3": 1 << 10}
	_, err = train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: sized(small)}})
	assert.ErrorAs(t, err, new(*usererror.Error))
	assert.ErrorContains(t, err, "does not fit on null:1 and null:3: ")
	assert.ErrorContains(t, err, "1 KiB available")
	assert.NoDirExists(t, c.Run.Dir)
}

// Ranks that fit a device each, but not together, are refused before anything is written.
func TestRanksOfOneDeviceFitTogether(t *testing.T) {
	whole := &runtest.Notes{}
	_, err := train.Run(t.Context(), planned(t, "train.steps=1", "pipeline.stages=1"),
		train.Options{Devices: train.DeviceOptions{Open: sized(nil)}, Report: whole})
	require.NoError(t, err)
	need := whole.Started.Ranks[0].Memory.Total
	replicas := []string{"train.steps=1", "pipeline.stages=1", "pipeline.replicas=2", "pipeline.recompute=never"}
	for _, key := range []string{"pipeline.local_steps=0", "pipeline.local_steps=2"} {
		c := planned(t, append(replicas, "pipeline.devices=[null:0]", key)...)
		open := train.DeviceOptions{Open: sized(map[string]int64{"null:0": 2 * need * 9 / 10})}
		_, err = train.Run(t.Context(), c, train.Options{Devices: open})
		assert.ErrorAs(t, err, new(*usererror.Error))
		require.ErrorIs(t, err, exec.ErrTooLarge)
		assert.Regexp(t, fmt.Sprintf(`^replica 0 stage 0 and replica 1 stage 0 on null:0: does not fit the device: [0-9.]+ [KMG]iB needed together, %s available$`, units.Bytes(2*need*9/10)), err.Error())
		assert.NoDirExists(t, c.Run.Dir)
	}
	two := map[string]int64{"null:0": 2 * need * 9 / 10, "null:1": 2 * need * 9 / 10}
	_, err = train.Run(t.Context(), planned(t, append(replicas, "pipeline.devices=[null:0, null:1]")...),
		train.Options{Devices: train.DeviceOptions{Open: sized(two)}})
	require.NoError(t, err)
}

// Ranks that fit their device together, except for the scratch memory of the fastest kernels, run with other kernels.
func TestRanksOfOneDeviceFitWithoutTheFastestKernels(t *testing.T) {
	start := func(scratch, memory int64) (need int64, n *runtest.Notes, err error) {
		cache, err := tune.Open(filepath.Join(t.TempDir(), "kernels.json"), nil)
		require.NoError(t, err)
		n = &runtest.Notes{}
		tuned := func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (engine.Planned, error) {
			p, err := engine.Execute(nil, 0)(dev, graphs, pools)
			p.Memory.Total += scratch
			return p, err
		}
		_, err = train.Run(t.Context(), planned(t, "train.steps=1", "train.eval_every=0", "lr.warmup=1", "pipeline.stages=1",
			"pipeline.replicas=2", "pipeline.recompute=never",
			"pipeline.devices=[null:0]"), train.Options{Devices: train.DeviceOptions{Open: sized(map[string]int64{"null:0": memory}),
			Execute: tuned, Tune: cache},
			Report: n})
		for _, l := range n.Started.Ranks {
			need += l.Memory.Total
		}
		return need, n, err
	}
	static, _, err := start(0, 0)
	require.NoError(t, err)
	need, n, err := start(100, static+200)
	require.NoError(t, err)
	assert.Equal(t, static+200, need)
	assert.Empty(t, n.Text)
	need, n, err = start(100, static+199)
	require.NoError(t, err)
	assert.Equal(t, static, need)
	require.Len(t, n.Text, 1)
	assert.Contains(t, n.Text[0], "the fastest kernels need more memory than there is: replica 0 stage 0 and replica 1 stage 0 on null:0: ")
	_, _, err = start(100, static-1)
	require.ErrorIs(t, err, exec.ErrTooLarge)
	assert.ErrorContains(t, err, units.Bytes(static)+" needed together", "what is needed at least")
}
