//go:build linux

package vulkan_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
)

// A pipeline over two devices trains: what TestValidation watches. The kernels are those of the golden runs, so that the driver's cache has
// them, whichever is first.
func TestTraining(t *testing.T) {
	const golden = "../../pipeline/train/testdata/golden/"
	dir := t.TempDir()
	c, err := train.LoadConfig(golden+"tied/muon.yaml", []string{"init.from=" + golden + "tied", "data.train=[" + golden + "text.txt]",
		"train={steps: 2, microbatches: 4}", "pipeline={schedule: 1f1b, stages: 2, devices: [vulkan:0, vulkan:0]}", "run.dir=" + dir})
	require.NoError(t, err)
	_, err = train.Run(context.Background(), c, train.Options{OpenDevice: func(string) (device.Device, error) {
		return vulkan.Open(0, vulkan.Options{CacheDir: filepath.Join(dir, "cache")})
	}})
	require.NoError(t, err)
}

// gpu calls a software adapter a GPU, so that it is offered the kernels that are written for GPUs.
type gpu struct{ device.Device }

func (d gpu) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Discrete
	return info
}

// Kernels for GPUs keep parts of sums in scratch memory between passes: what TestValidation watches.
func TestSumsInParts(t *testing.T) {
	d, err := vulkan.Open(0, vulkan.Options{CacheDir: t.TempDir()})
	require.NoError(t, err)
	defer d.Close()
	f32 := func(shape ...int) graph.Type { return graph.T(graph.F32, shape...) }
	task := devicetest.Case(graph.Case{Op: new(op.MatMulOp), Tolerance: 1e-5, Inputs: []graph.Type{f32(20, 600), f32(600, 24)}})
	for _, r := range devicetest.Check(gpu{d}, []devicetest.Task{task}) {
		assert.True(t, r.OK(), "%s: %s", r.Candidate, r.Failure)
	}
}
