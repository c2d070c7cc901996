package compute_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/require"
)

// A device with WebGPU's default limits accepts every program: bindings, alignment, aliasing and dispatch sizes.
func TestDefaultLimits(t *testing.T) {
	tier.Rest(t)
	tasks := append(compute.Graphs(), compute.Chains(2000)...)
	for _, task := range tasks {
		dev := null.New(null.Options{})
		plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"task": task.Graph}, exec.Options{})
		require.NoError(t, err, task.Name)
		s, err := plan.Load()
		require.NoError(t, err, task.Name)
		buffers, _ := dev.Allocated()
		require.Equal(t, plan.Memory().Total, buffers, "%s: planned and allocated bytes", task.Name)
		require.NoError(t, s.Close())
	}
}

// On a device that computes nothing nearly every task fails, so the suite can fail.
func TestSuiteFails(t *testing.T) {
	dev := null.New(null.Options{})
	results := compute.CheckOnce(dev, compute.Chains(20), nil)
	require.Len(t, results, 20)
	for _, r := range results {
		require.False(t, r.OK(), r.Case)
	}
	for _, r := range compute.Check(dev, compute.Cases(new(op.ScaleOp))) {
		require.Contains(t, r.Failure, "expected", r.Case)
	}
}
