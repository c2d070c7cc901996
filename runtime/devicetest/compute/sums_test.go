package compute_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sums is a task of reductions of x, of its squares too where several share a kernel.
func sums(t *testing.T, x graph.Type, build func(b *graph.Builder, x *graph.Value)) compute.Task {
	g, err := graph.Build(func(b *graph.Builder) { build(b, b.Input("x", x)) })
	require.NoError(t, err)
	return compute.Task{Op: "sums", Name: x.String(), Graph: g, Runs: 2, Tolerance: 2e-5,
		Inputs: map[string]*graph.Tensor{"x": graph.Case{Inputs: []graph.Type{x}}.Values(3)[0]}}
}

// Sums of few long rows are spread over a GPU: by workgroups where columns are neighbours in memory, else by
// invocations.
func TestSumsForGPUs(t *testing.T) {
	d := testdevice.TranslatedToCompute(t)
	var tasks []compute.Task
	for _, c := range []struct {
		shape graph.Shape
		axes  []int
	}{
		{graph.Shape{2, 5000}, []int{1}}, {graph.Shape{3, 2, 2500, 1}, []int{1, 2}}, {graph.Shape{2, 3, 1100}, []int{0, 2}},
		{graph.Shape{300007}, []int{0}}, // more parts than a workgroup's invocations
		{graph.Shape{5003, 3}, []int{0}}, {graph.Shape{4, 1001, 2}, []int{0, 1}}, {graph.Shape{7, 130, 5, 3}, []int{1}},
		{graph.Shape{129, 5000}, []int{0}},
	} {
		tasks = append(tasks, sums(t, graph.Type{DType: graph.F32, Shape: c.shape}, func(b *graph.Builder, x *graph.Value) {
			b.Output("sum", op.Sum(x, c.axes, false))
			b.Output("square", op.Sqrt(op.Sum(op.Square(x), c.axes, true)))
		}), sums(t, graph.Type{DType: graph.I32, Shape: c.shape}, func(b *graph.Builder, x *graph.Value) {
			b.Output("most", op.ReduceMax(x, c.axes, false))
			b.Output("least", op.ReduceMin(x, c.axes, false))
		}))
	}
	chosen := compute.CheckOnce(hardware{d}, tasks, nil)
	for _, r := range chosen {
		assert.True(t, r.OK(), "%s: %s", r.Case, r.Failure)
		assert.Contains(t, r.Candidate, "spread", r.Case)
	}
	assert.Len(t, chosen, len(tasks))
}
