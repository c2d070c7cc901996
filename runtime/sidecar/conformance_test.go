//go:build unix

package sidecar

import (
	"flag"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/stretchr/testify/require"
)

var whole = flag.Bool("whole", false, "run the whole conformance suite through a worker")

// A device computes the same in a worker: some ops of each kind, and graphs that fuse.
func TestConformance(t *testing.T) {
	for _, name := range tier.Divide(t, backends(), tier.First[string](1)) {
		t.Run(name, func(t *testing.T) { conform(t, name) })
	}
}

func conform(t *testing.T, name string) {
	d := opened(t, options(name))
	if *whole {
		compute.Run(t, d, 0)
		return
	}
	tasks := compute.Chains(10)
	for _, o := range []graph.Op{new(op.EmbeddingGradOp), new(op.SoftmaxOp), new(op.CastOp), new(op.RandomBitsOp), new(op.ConcatOp)} {
		tasks = append(tasks, compute.Cases(o)...)
	}
	results := compute.CheckOnce(d, tasks, nil)
	require.Len(t, results, len(tasks))
	for _, r := range results {
		require.True(t, r.OK(), "%s %s: %s", r.Op, r.Case, r.Failure)
	}
}
