package compute_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hardware reports a software adapter as a GPU, so that the kernels for GPUs run on it.
type hardware struct{ device.Device }

func (d hardware) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Discrete
	return info
}

func (d hardware) Limits() target.Limits {
	l := d.Device.Limits()
	l.Software = false
	return l
}

// TestAttentionForGPUs checks the attention kernels that software adapters do not use. Another test
// compares the bits of 16-bit inputs.
func TestAttentionForGPUs(t *testing.T) {
	tier.Rest(t)
	d := testdevice.Translated(t)
	gpu := hardware{watched(t, d)}
	for _, o := range []graph.Op{new(op.AttentionOp), new(op.AttentionGradOp)} {
		var tasks []compute.Task
		for _, c := range o.Cases() {
			// Rows of more vectors repeat the same text, and compilers take long for it. Those of 44 are
			// eleven lanes'.
			q := c.Inputs[0]
			if dim := q.Shape[3]; (dim <= 8 || dim%4 != 0 || dim == 44) && !q.DType.Float16() && !positioned(c) && !repeats(c) {
				tasks = append(tasks, compute.Case(c))
			}
		}
		candidates := map[string]bool{}
		for _, kernel := range []string{"rows", "tiles"} {
			for _, r := range compute.CheckOnce(gpu, tasks, named(kernel)) {
				candidates[r.Candidate] = true
				assert.True(t, r.OK(), "%s %s, %s: %s", r.Op, r.Case, r.Candidate, r.Failure)
			}
		}
		assert.Equal(t, map[string]bool{"rows": true, "tiles": true}, candidates)
	}
}

// repeats reports whether the text of a case of vectors differs in numbers only from another's: that of 7 keys and 12
// queries, or the reverse, from the same with windows, and that of a window of 4 or 32 keys from those of 2 and 65.
func repeats(c graph.Case) bool {
	w := window(c)
	q, k := c.Inputs[0].Shape, c.Inputs[1].Shape
	return q[3]%4 == 0 && (w == 0 && q[1] != k[1] || w == 4 || w == 32)
}

// window returns the window of a case of attention or of its gradient; 0: it has none.
func window(c graph.Case) int {
	switch o := c.Op.(type) {
	case *op.AttentionOp:
		return o.Window
	case *op.AttentionGradOp:
		return o.Window
	}
	return 0
}

// positioned reports whether a case of attention has queries at the end of a cache.
func positioned(c graph.Case) bool {
	o, ok := c.Op.(*op.AttentionOp)
	return ok && (o.Form == op.FromPosition || o.Form == op.FromCaches)
}

// TestAttentionOfACacheForGPUs checks the kernel whose lanes share the keys of a query.
func TestAttentionOfACacheForGPUs(t *testing.T) {
	tier.Rest(t)
	d := testdevice.Translated(t)
	var tasks []compute.Task
	for _, c := range new(op.AttentionOp).Cases() {
		if positioned(c) {
			tasks = append(tasks, compute.Case(c))
		}
	}
	assert.Greater(t, len(tasks), 5)
	for _, r := range compute.CheckOnce(hardware{watched(t, d)}, tasks, nil) {
		assert.Equal(t, "keys", r.Candidate)
		assert.True(t, r.OK(), "%s: %s", r.Case, r.Failure)
	}
}

// TestEmbeddingGradientsForGPUs checks the walks along equal ids, which software adapters do not use.
func TestEmbeddingGradientsForGPUs(t *testing.T) {
	tier.Rest(t)
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	tasks := compute.Cases(new(op.EmbeddingGradOp))
	for _, r := range compute.CheckOnce(hardware{d}, tasks, nil) {
		assert.Equal(t, "chains", r.Candidate)
		assert.True(t, r.OK(), "%s: %s", r.Case, r.Failure)
	}
	for _, task := range tasks {
		in := []*graph.Tensor{task.Inputs["x0"], task.Inputs["x1"]}
		assert.Equal(t, computed(t, d, task.Graph, in, named("chains")), computed(t, hardware{d}, task.Graph, in, named("chains")),
			"one order of sums")
	}
}
