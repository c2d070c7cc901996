//go:build unix

package sidecar

import (
	"flag"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/stretchr/testify/require"
)

var whole = flag.Bool("whole", false, "run the whole conformance suite through a worker")

// A device computes the same in a worker: some ops of each kind, and graphs that fuse.
func TestConformance(t *testing.T) {
	d := opened(t, options("webgpu"))
	if *whole {
		devicetest.Run(t, d)
		return
	}
	tasks := devicetest.Chains(10)
	for _, name := range []string{"embedding_grad", "softmax", "cast", "random_bits", "concat"} {
		o, err := graph.NewOp(name)
		require.NoError(t, err)
		tasks = append(tasks, devicetest.Cases(o)...)
	}
	results := devicetest.CheckOnce(d, tasks, nil)
	require.Len(t, results, len(tasks))
	for _, r := range results {
		require.True(t, r.OK(), "%s %s: %s", r.Op, r.Case, r.Failure)
	}
}
