package devicetest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// Products whose sum is taken in parts, which only GPUs are offered: the parts are kept in scratch memory between passes.
func TestProductsInParts(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	c := graph.Case{Op: new(op.MatMulOp), Tolerance: 1e-5, Inputs: []graph.Type{{DType: graph.F32, Shape: graph.Shape{40, 2000}}, {DType: graph.F32, Shape: graph.Shape{2000, 24}}}}
	split := 0
	for _, r := range devicetest.Check(hardware{d}, []devicetest.Task{devicetest.Case(c)}) {
		assert.True(t, r.OK(), "%s: %s", r.Candidate, r.Failure)
		if strings.Contains(r.Candidate, "split") {
			split++
		}
	}
	assert.Positive(t, split)
}
