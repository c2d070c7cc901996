package devicetest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// hardware calls a software adapter a GPU, so that it is offered the kernels that are written for GPUs.
type hardware struct{ device.Device }

func (d hardware) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Discrete
	return info
}

// TestAttentionForGPUs checks the attention kernels that software adapters are not offered on whatever adapter there is. That those of halves
// have the bits of those of singles is another test's.
func TestAttentionForGPUs(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	gpu := hardware{watched(t, d)}
	for _, name := range []string{"attention", "attention_grad"} {
		o, err := graph.NewOp(name)
		require.NoError(t, err)
		var tasks []devicetest.Task
		wide := false
		for _, c := range o.Cases() {
			// Rows of more vectors repeat the same text, and software adapters compile it for long. Those of 64 have one pass more.
			q := c.Inputs[0]
			once := q.Shape[3] == 64 && name == "attention_grad" && !wide
			if (q.Shape[3] <= 8 || q.Shape[3]%4 != 0 || once) && !q.DType.Half() {
				wide = wide || once
				tasks = append(tasks, devicetest.Case(c))
			}
		}
		candidates := map[string]bool{}
		for _, kernel := range []string{"rows", "tiles"} {
			for _, r := range devicetest.CheckOnce(gpu, tasks, named(kernel)) {
				candidates[r.Candidate] = true
				assert.True(t, r.OK(), "%s %s, %s: %s", r.Op, r.Case, r.Candidate, r.Failure)
			}
		}
		assert.Equal(t, map[string]bool{"rows": true, "tiles": true}, candidates)
	}
}

// TestEmbeddingGradientsForGPUs checks the walks along equal ids that software adapters are not offered.
func TestEmbeddingGradientsForGPUs(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	tasks := devicetest.Cases(new(op.EmbeddingGradOp))
	for _, r := range devicetest.CheckOnce(hardware{d}, tasks, nil) {
		assert.Equal(t, "chains", r.Candidate)
		assert.True(t, r.OK(), "%s: %s", r.Case, r.Failure)
	}
	for _, task := range tasks {
		in := []*graph.Tensor{task.Inputs["x0"], task.Inputs["x1"]}
		assert.Equal(t, compute(t, d, task.Graph, in, named("chains")), compute(t, hardware{d}, task.Graph, in, named("chains")), "one order of sums")
	}
}
