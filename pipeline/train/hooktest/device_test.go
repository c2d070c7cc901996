package hooktest

import (
	"context"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// On a real device, as in the reference, 2BW with all batch hooks gives the bits of one device with a delay. AdamW has
// fewer kernels to compile than Muon; hooks know nothing of the optimizer, nor of which adapter it is.
func TestDeviceTrainsOnBatchesOfHooks(t *testing.T) {
	backends := gputest.Backends()
	for _, name := range tier.Divide(t, slices.Compact([]string{backends[0], backends[len(backends)-1]}), tier.First[string](1)) {
		t.Run(name, func(t *testing.T) { trainOnBatchesOfHooks(t, name) })
	}
}

func trainOnBatchesOfHooks(t *testing.T, name string) {
	all := traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch", traintest.Weigher(t)+", hook: token_weights",
		traintest.ScaledLoss(t)+", hook: build_loss")
	run := func(instances int, overrides ...string) map[string]string {
		c := traintest.Demo(t, t.TempDir(), append(overrides, all, "pipeline.delay=1", "pipeline.stale_microbatches=1",
			"train.eval_every=0", "optimizer.name=adamw", "pipeline.devices=["+name+"]")...)
		res, err := train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: gputest.Open},
			Hooks: train.HookOptions{Instances: instances}})
		require.NoError(t, err)
		return traintest.Files(t, res.Checkpoint)
	}
	one := run(1)
	others := []map[string]string{run(2, "pipeline.schedule=2bw", "pipeline.stages=2")}
	if name == testdevice.Name { // the number of instances is no matter of devices
		others = append(others, run(4))
	}
	for _, other := range others {
		for file := range one {
			assert.True(t, one[file] == other[file], file)
		}
	}
}
