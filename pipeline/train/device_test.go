package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/weights"
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

// backends are those of this system: Vulkan's is for Linux.
func backends() []string {
	if runtime.GOOS == "linux" {
		return []string{"webgpu:0", "vulkan:0"}
	}
	return []string{"webgpu:0"}
}

// shaderCache is shared by the tests, so that Vulkan's translator is compiled once.
var shaderCache = filepath.Join(os.TempDir(), fmt.Sprint("gpupipe-train-test-", os.Getpid()))

func TestMain(m *testing.M) {
	serveAsWorker()
	code := m.Run()
	os.RemoveAll(shaderCache)
	os.Exit(code)
}

// asPyTorch compares a run with its golden losses.
func asPyTorch(t *testing.T, c config.Config, want golden) {
	t.Helper()
	c.Run.Dir = t.TempDir()
	_, err := Run(context.Background(), c, Options{OpenDevice: openGPU})
	require.NoError(t, err)
	records, err := metrics.Read(filepath.Join(c.Run.Dir, "metrics.jsonl"))
	require.NoError(t, err)
	require.Len(t, records, len(want.Losses))
	for i, r := range records {
		assert.InEpsilon(t, want.Losses[i], r.Values["loss"], 2e-5, "step %d", i)
		assert.InEpsilon(t, want.GradNorms[i], r.Values["grad_norm"], 1e-3, "step %d", i)
	}
}

// Twenty steps on a real device in f32 against PyTorch in float64.
func TestDeviceTrainsAsPyTorchDoes(t *testing.T) {
	for _, config := range goldenConfigs(t) {
		for _, dev := range backends() {
			t.Run(strings.TrimSuffix(strings.TrimPrefix(config, "testdata/golden/"), ".yaml")+"/"+dev, func(t *testing.T) {
				c, want := readGolden(t, config)
				c.Pipeline.Devices = []string{dev}
				asPyTorch(t, c, want)
			})
		}
	}
}

// Two stages, one on each backend, train together.
func TestStagesOnTwoBackendsTrainAsPyTorchDoes(t *testing.T) {
	if len(backends()) < 2 {
		t.Skip("there is one backend on this system")
	}
	for _, name := range []string{"tied/muon", "untied/adamw"} {
		for _, devices := range [][]string{{"webgpu:0", "vulkan:0"}, {"vulkan:0", "webgpu:0"}} {
			t.Run(name+"/"+devices[0]+" first", func(t *testing.T) {
				c, want := readGolden(t, "testdata/golden/"+name+".yaml")
				c.Pipeline.Schedule, c.Pipeline.Stages, c.Pipeline.Devices = "1f1b", 2, devices
				c.Train.Microbatches = 4
				asPyTorch(t, c, want)
			})
		}
	}
}

// Every gradient of the first step on a real device against PyTorch.
func TestDeviceGradientsAgreeWithPyTorch(t *testing.T) {
	for _, name := range []string{"tied/adamw", "untied/adamw", "odd/adamw", "gqa/adamw-clip"} {
		t.Run(name, func(t *testing.T) {
			c, _ := readGolden(t, "testdata/golden/"+name+".yaml")
			got := deviceGradients(t, c)
			grads, err := safetensors.Open(filepath.Join(c.Init.From, "grads.safetensors"))
			require.NoError(t, err)
			for _, p := range c.Model.Parameters() {
				want, err := grads.Float32(p.Name)
				require.NoError(t, err)
				var diff, norm float64
				for i, g := range got[p.Name] {
					diff += math.Pow(float64(g)-float64(want[i]), 2)
					norm += math.Pow(float64(want[i]), 2)
				}
				assert.Less(t, math.Sqrt(diff/norm), 1e-4, p.Name)
			}
			require.NoError(t, grads.Close())
		})
	}
}

// deviceGradients computes the gradient of the first batch from the change of the weights in one step of gradient
// descent. The step is so large that the weights before it are small in comparison.
func deviceGradients(t *testing.T, c config.Config) map[string][]float32 {
	t.Helper()
	const rate = 1e4
	c.Train.Steps, c.Train.GradClip = 1, 0
	c.Optimizer.Algorithm, c.Optimizer.WeightDecay = &optim.SGD{LR: rate}, 0
	c.LR.Schedule, c.LR.Warmup = "constant", 0
	c.Run.Dir = t.TempDir()
	res, err := Run(context.Background(), c, Options{OpenDevice: openGPU})
	require.NoError(t, err)
	before, err := weights.Open(c.Init.From, c.Model.Config)
	require.NoError(t, err)
	after, err := weights.Open(res.Checkpoint, c.Model.Config)
	require.NoError(t, err)
	grads := map[string][]float32{}
	for _, p := range c.Model.Parameters() {
		x, err := before.Initial(p)
		require.NoError(t, err)
		y, err := after.Initial(p)
		require.NoError(t, err)
		for i := range x {
			grads[p.Name] = append(grads[p.Name], float32((float64(x[i])-float64(y[i]))/rate))
		}
	}
	require.NoError(t, errors.Join(before.Close(), after.Close()))
	return grads
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
