package devicetest_test

import (
	"fmt"
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

// TestAttentionForGPUs checks the attention kernels that software adapters are not offered on whatever adapter there is.
func TestAttentionForGPUs(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	for _, name := range []string{"attention", "attention_grad"} {
		o, err := graph.NewOp(name)
		require.NoError(t, err)
		candidates := map[string]bool{}
		for i, c := range o.Cases() {
			if c.Inputs[0].Shape[3] > 24 {
				continue // longer rows repeat the same text, and software adapters compile it for long
			}
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				for _, r := range devicetest.Check(hardware{d}, []devicetest.Task{devicetest.Case(c)}) {
					candidates[r.Candidate] = true
					assert.True(t, r.OK(), "%s: %s", r.Candidate, r.Failure)
				}
			})
		}
		assert.Equal(t, map[string]bool{"naive": true, "rows": true, "tiles": true}, candidates)
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
