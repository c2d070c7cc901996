//go:build linux

package vulkan_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// importing counts a device's transfers.
type importing struct {
	*vulkan.Device
	transfers *atomic.Int64
}

func (d importing) Transfer(from, to device.Range) (device.Pending, error) {
	d.transfers.Add(1)
	return d.Device.Transfer(from, to)
}

// plain hides that a device imports.
type plain struct{ device.Device }

// Two pipelines of two devices train with the same bits through every channel. TestValidation observes this.
func TestTraining(t *testing.T) {
	tier.Rest(t)
	const golden = "../../pipeline/train/testdata/golden/"
	cache := filepath.Join(t.TempDir(), "cache")
	trained := func(wrap func(*vulkan.Device) device.Device) []byte {
		dir := t.TempDir()
		c, err := config.Load(golden+"tied/muon.yaml", []string{"init.from=" + golden + "tied", "data.train=[" + golden + "text.txt]",
			"train={steps: 2, microbatches: 4}", "pipeline={schedule: 1f1b, stages: 2, replicas: 2, devices: [vulkan:0]}", "run.dir=" +
				dir})
		require.NoError(t, err)
		_, err = train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: func(string) (device.Device, error) {
			d, err := vulkan.Open(0, vulkan.Options{CacheDir: cache})
			return wrap(d), err
		}}})
		require.NoError(t, err)
		weights, err := os.ReadFile(filepath.Join(dir, "checkpoints", "step-2", "model.safetensors"))
		require.NoError(t, err)
		return weights
	}
	var transfers atomic.Int64
	imported := trained(func(d *vulkan.Device) device.Device { return importing{d, &transfers} })
	// A microbatch has an activation and a gradient; a batch has gradients and weights of all that the second replica
	// holds, of 38 parameters and of its tied head, and of the first replica's tied head; and the second replica's
	// losses.
	assert.EqualValues(t, 2*2*(2*4+2*(38+1+1)+1), transfers.Load(), "two batches, out and in")
	assert.True(t, bytes.Equal(imported, trained(func(d *vulkan.Device) device.Device { return plain{d} })), "weights differ")
}

// gpu calls a software adapter a GPU, so that it is offered the kernels that are written for GPUs.
type gpu struct{ device.Device }

func (d gpu) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Discrete
	return info
}

// Kernels for GPUs keep partial sums in scratch memory between passes. TestValidation observes this.
func TestSumsInParts(t *testing.T) {
	tier.Rest(t)
	d, err := vulkan.Open(0, vulkan.Options{CacheDir: t.TempDir()})
	require.NoError(t, err)
	defer d.Close()
	f32 := func(shape ...int) graph.Type { return graph.T(graph.F32, shape...) }
	task := compute.Case(graph.Case{Op: new(op.MatMulOp), Tolerance: 1e-5, Inputs: []graph.Type{f32(20, 600), f32(600, 24)}})
	for _, r := range compute.Check(gpu{d}, []compute.Task{task}) {
		assert.True(t, r.OK(), "%s: %s", r.Candidate, r.Failure)
	}
}
