package coordinator

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const growing = "train={steps: 8, batch_schedule: {0: 4, 3: 8}, microbatches: 2, eval_every: 0, save_every: 2, keep: 0}"

// A run whose batches grow goes back to a checkpoint before and after that, and ends with the bits of one process.
func TestMembersGoBackWithABatchSchedule(t *testing.T) {
	dir := t.TempDir()
	overrides := []string{growing, "pipeline.stages=2", "pipeline.schedule=2bw"}
	one := run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/one", "pipeline.devices=[cpu:0/1]")...), nil)
	n := newNetwork()
	n.add(t, "a")
	n.add(t, "b")
	c := traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/other")...)
	run(t, c, n.remote("a", "b"))
	for _, step := range []int{6, 2} {
		o := train.Options{Devices: train.DeviceOptions{Remote: n.remote("a", "b")}, Report: &runtest.Notes{},
			From: &train.From{Run: c.Run.Dir, Step: step}}
		res, err := train.Run(t.Context(), c, o)
		require.NoError(t, err)
		again := traintest.Files(t, res.Checkpoint)
		for file := range one {
			assert.True(t, one[file] == again[file], "%s from step %d", file, step)
		}
		assert.Equal(t, traintest.Measurements(t, dir+"/one"), traintest.Measurements(t, c.Run.Dir))
	}
}

// Batches that will not fit the members are refused before the first step. Those that fit change nothing.
func TestLargestBatchesFitMembers(t *testing.T) {
	for _, largest := range []int{8, 1024} {
		dir := t.TempDir()
		overrides := []string{fmt.Sprintf("train={steps: 3, batch_schedule: {0: 4, 2: %d}, microbatches: 2, eval_every: 0}", largest),
			"pipeline.stages=2", "pipeline.schedule=gpipe", "pipeline.recompute=never", "pipeline.memory=256KiB"}
		n := newNetwork()
		n.add(t, "a")
		n.add(t, "b")
		var sizes []int
		open := n.remote("a", "b")
		remote := func(ctx context.Context, task train.RemoteTask) (train.Pipeline, error) {
			sizes = append(sizes, task.Config.Train.BatchSize)
			return open(ctx, task)
		}
		c := traintest.Demo(t, dir, overrides...)
		_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: remote},
			Report: &runtest.Notes{}})
		if largest == 8 {
			require.NoError(t, err)
			assert.Equal(t, []int{8, 4, 8}, sizes)
			continue
		}
		assert.ErrorContains(t, err, "train.batch_schedule: batches of 1024 sequences: stage")
		assert.ErrorContains(t, err, "256 KiB available")
		assert.ErrorAs(t, err, new(*usererror.Error))
		assert.Equal(t, []int{1024}, sizes)
		assert.NoDirExists(t, c.Run.Dir)
	}
}
