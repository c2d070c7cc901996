package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openGPU opens the machine's first adapter, through Vulkan if the name begins with it.
func openGPU(name string) (device.Device, error) {
	if strings.HasPrefix(name, "vulkan") {
		return vulkan.Open(0, vulkan.Options{CacheDir: shaderCache})
	}
	return webgpu.Open(0, webgpu.Options{})
}

// shaderCache is shared by the tests, so that Vulkan's translator is compiled once.
var shaderCache = filepath.Join(os.TempDir(), fmt.Sprint("gpupipe-train-test-", os.Getpid()))

func TestMain(m *testing.M) {
	serveAsWorker()
	code := m.Run()
	os.RemoveAll(shaderCache)
	os.Exit(code)
}

// On a real device, as in the reference, 2BW with all batch hooks gives the bits of one device with a delay.
func TestDeviceTrainsOnBatchesOfHooks(t *testing.T) {
	all := withHooks(mixer(t, true)+", hook: map_batch", weigher(t)+", hook: token_weights", scaled(t)+", hook: build_loss")
	run := func(instances int, overrides ...string) map[string]string {
		c := demo(t, t.TempDir(), append(overrides, all, "pipeline.delay=1", "train.eval_every=0")...)
		res, err := Run(context.Background(), c, Options{OpenDevice: openGPU, Instances: instances})
		require.NoError(t, err)
		return files(t, res.Checkpoint)
	}
	one := run(1)
	for _, two := range []map[string]string{run(4), run(2, "pipeline.schedule=2bw", "pipeline.stages=2")} {
		for file := range one {
			assert.True(t, one[file] == two[file], file)
		}
	}
}
