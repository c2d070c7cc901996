package faulttest

import (
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// If memory is too small for the kernels chosen by timing, the run uses the static choice and keeps it: after a fault,
// and when it is resumed with more memory. The run reports this once, and that the bits will differ.
func TestKernelsChosenForLackOfMemoryStay(t *testing.T) {
	scarce, planned := true, 0
	c := traintest.Demo(t, t.TempDir(), "train.steps=4", "train.save_every=2", "pipeline={stages: 2, schedule: 1f1b, isolate: process}")
	train := func(open train.OpenWorker) (n *runtest.Notes, timings string) {
		timings = filepath.Join(t.TempDir(), "timings.json")
		cache, err := tune.Open(timings, nil)
		require.NoError(t, err)
		n, planned = &runtest.Notes{}, 0
		_, err = train.Run(t.Context(), c, train.Options{Report: n, Resume: true,
			Devices: train.DeviceOptions{OpenWorker: open, Tune: cache,
				Execute: func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (engine.Planned, error) {
					p, err := engine.Execute(nil, 0)(dev, graphs, pools)
					if planned++; scarce {
						p.Untuned = &exec.Shortage{Needed: exec.Memory{Total: 7}, Available: 4}
					}
					return p, err
				}}})
		require.NoError(t, err)
		return n, timings
	}
	kept := func(step string) string { return filepath.Join(c.Run.Dir, checkpoint.Folder, step, "kernels.json") }

	fell := false
	n, timings := train(fragile(func(_ int64, op faulty.Op) error {
		if op == faulty.Read && !fell {
			fell = true
			return killed("read")
		}
		return nil
	}))
	require.Len(t, n.Text, 4)
	assert.Contains(t, n.Text[0], "no checkpoint yet")
	assert.Equal(t, "null:0: the fastest kernels need 3 B more of memory than available (stage 0, stage 1); others run in their place",
		n.Text[1])
	assert.Contains(t, n.Text[3], "restarted")
	assert.Equal(t, 2, planned, "once for each of two ranks")
	assert.FileExists(t, timings, "other runs need not measure again")
	assert.NoFileExists(t, kept("step-2"))
	assert.NoFileExists(t, filepath.Join(c.Run.Dir, "kernels.json"))

	scarce, c.Train.Steps = false, 6
	n, timings = train(worker(traintest.OpenNull))
	assert.Len(t, n.Text, 2, "%q", n.Text)
	assert.NoFileExists(t, timings, "nothing was to be chosen")
	assert.NoFileExists(t, kept("step-6"))

	c = traintest.Demo(t, t.TempDir(), "train.steps=2", "pipeline={stages: 2, schedule: 1f1b, isolate: process}")
	train(worker(traintest.OpenNull))
	require.FileExists(t, kept("step-2"))
	scarce, c.Train.Steps = true, 4
	n, _ = train(worker(traintest.OpenNull))
	assert.Contains(t, n.Text[len(n.Text)-1], "(stage 0, stage 1); others run in their place, and the run goes on, but not to the same bits")
	assert.NoFileExists(t, kept("step-4"))
	assert.NoFileExists(t, filepath.Join(c.Run.Dir, "kernels.json"))
}
