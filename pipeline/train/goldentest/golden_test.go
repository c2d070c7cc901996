// Package goldentest compares whole runs on this machine's devices with PyTorch's. It holds tests only, apart from the
// tests of pipeline/train because they take long.
package goldentest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain runs the tests in pipeline/train, where the golden files are.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// adapterSteps are the steps of a golden run that adapters train: past the warm-up, with state in every optimizer. The
// CPU trains all of them.
const adapterSteps = 8

// asPyTorch compares a run with its golden losses.
func asPyTorch(t *testing.T, c config.Config, want traintest.Golden) { within(t, 2e-5, c, want) }

// within compares a run with its golden losses, within a relative tolerance, and 50 times that of gradient norms.
func within(t *testing.T, tolerance float64, c config.Config, want traintest.Golden) {
	t.Helper()
	c.Run.Dir = t.TempDir()
	steps := len(want.Losses)
	if slices.ContainsFunc(c.Pipeline.Devices, func(name string) bool { return name != testdevice.Name }) {
		steps = adapterSteps
	}
	_, err := train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: gputest.Open}, StopAfter: steps})
	require.NoError(t, err)
	records, err := metrics.Read(filepath.Join(c.Run.Dir, "metrics.jsonl"))
	require.NoError(t, err)
	require.Len(t, records, steps)
	for i, r := range records {
		assert.InEpsilon(t, want.Losses[i], r.Values["loss"], tolerance, "step %d", i)
		assert.InEpsilon(t, want.GradNorms[i], r.Values["grad_norm"], 50*tolerance, "step %d", i)
	}
}

// onAdapters names the adapters of golden runs: one run of each model, of three optimizers. The other runs differ from
// these in the optimizer alone. The core of the tests has untied/adamw on every adapter. tied/muon trains on both at
// once (TestStagesOnTwoBackendsTrainAsPyTorchDoes), and they divide the others: each adapter's conformance suite has
// all ops.
var onAdapters = map[string][]string{"untied/adamw": {"vulkan:0", "webgpu:0"}, "odd/adamw": {"vulkan:0"}, "gqa/mars": {"webgpu:0"}}

// Runs on a real device in f32 against PyTorch in float64.
func TestDeviceTrainsAsPyTorchDoes(t *testing.T) {
	type run struct{ config, name, device string }
	var all []run
	found := 0
	for _, config := range traintest.Goldens(t) {
		name := strings.TrimSuffix(strings.TrimPrefix(config, "testdata/golden/"), ".yaml")
		if _, ok := onAdapters[name]; ok {
			found++
		}
		for _, dev := range gputest.Backends() {
			if dev == testdevice.Name || slices.Contains(onAdapters[name], dev) {
				all = append(all, run{config, name, dev})
			}
		}
	}
	assert.Len(t, onAdapters, found)
	for _, r := range tier.Divide(t, all, func(_ int, r run) bool { return r.device == testdevice.Name || r.name == "untied/adamw" }) {
		t.Run(r.name+"/"+r.device, func(t *testing.T) {
			c, want := traintest.ReadGolden(t, r.config)
			c.Pipeline.Devices = []string{r.device}
			asPyTorch(t, c, want)
		})
	}
}

// Two stages, one on each backend, train together. Each backend has the first stage once, and once the last.
func TestStagesOnTwoBackendsTrainAsPyTorchDoes(t *testing.T) {
	tier.Rest(t)
	if len(gputest.Backends()) < 2 {
		t.Skip("there is one backend on this system")
	}
	for name, pairs := range map[string][][]string{
		"tied/muon":    {{"webgpu:0", "vulkan:0"}, {"vulkan:0", "cpu:0"}},
		"untied/adamw": {{"cpu:0", "webgpu:0"}},
	} {
		for _, devices := range pairs {
			t.Run(name+"/"+devices[0]+" first", func(t *testing.T) {
				c, want := traintest.ReadGolden(t, "testdata/golden/"+name+".yaml")
				c.Pipeline.Schedule, c.Pipeline.Stages, c.Pipeline.Devices = "1f1b", 2, devices
				c.Train.Microbatches = 4
				asPyTorch(t, c, want)
			})
		}
	}
}

// golden is the config of a golden run, and on how many stages to train it.
type golden struct {
	path   string
	stages int
}

func (g golden) String() string {
	return fmt.Sprintf("%s/%d stages", strings.TrimSuffix(strings.TrimPrefix(g.path, "testdata/golden/"), ".yaml"), g.stages)
}

// onStages returns each golden run on one stage or on two, in turn, and those named, which are the core of the tests.
// That a run on two stages has the bits of one on one stage is shown elsewhere: cputest, equaltest.
func onStages(t *testing.T, paths []string, core ...string) []golden {
	t.Helper()
	var all []golden
	found := 0
	for i, path := range paths {
		for _, g := range []golden{{path, 1}, {path, 2}} {
			named := slices.Contains(core, g.String())
			if named {
				found++
			}
			if named || g.stages == 1+i%2 {
				all = append(all, g)
			}
		}
	}
	require.Len(t, core, found)
	return tier.Divide(t, all, func(_ int, g golden) bool { return slices.Contains(core, g.String()) })
}

// Runs whose first microbatches read the weights of the step before, on one device and on stages, against PyTorch in
// float64.
func TestStaleMicrobatchesTrainAsPyTorchDoes(t *testing.T) {
	for _, g := range onStages(t, traintest.StaleGoldens(t), "tied/stale/adamw-3-of-8/2 stages",
		"tied/stale/muon-2-of-4-feedback/2 stages") {
		t.Run(g.String(), func(t *testing.T) {
			c, want := traintest.ReadGolden(t, g.path)
			c.Pipeline.Devices = []string{testdevice.Name}
			require.Equal(t, schedule.TwoBW, c.Pipeline.Schedule)
			c.Pipeline.Stages = g.stages
			asPyTorch(t, c, want)
		})
	}
}

// Replicas that train on their own, on one device and on stages, against PyTorch in float64. Random rounding to few
// bits is a step: where PyTorch in float32 takes another one, so may a device.
func TestReplicasTrainAsPyTorchDoes(t *testing.T) {
	for _, g := range onStages(t, traintest.ReplicaGoldens(t), "tied/replicas/muon-2-int8-stale/1 stages",
		"gqa/replicas/muon-4-int4-late-feedback/1 stages") {
		t.Run(g.String(), func(t *testing.T) {
			c, want := traintest.ReadGolden(t, g.path)
			if c.MicrobatchesPerReplica() < g.stages {
				c.Train.Microbatches *= g.stages
			}
			c.Pipeline.Devices, c.Pipeline.Stages = []string{testdevice.Name}, g.stages
			if g.stages > 1 && c.Pipeline.Delay == 0 {
				c.Pipeline.Schedule = schedule.OneF1B
			}
			within(t, max(2e-5, 10*want.Float32), c, want)
		})
	}
}

// Every gradient of the first step on a real device against PyTorch.
func TestDeviceGradientsAgreeWithPyTorch(t *testing.T) {
	for _, name := range tier.Divide(t, []string{"gqa/adamw-clip", "odd/adamw", "tied/adamw", "untied/adamw"}, tier.First[string](2)) {
		t.Run(name, func(t *testing.T) {
			c, _ := traintest.ReadGolden(t, "testdata/golden/"+name+".yaml")
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
	res, err := train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: gputest.Open}})
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
