package compute_test

import (
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pairs is the name of the kernels of attention that multiply bf16 by AVX512-BF16.
const pairs = "native avx512 bf16"

// hasPairs reports whether this machine's CPU runs them.
func hasPairs(t *testing.T) bool {
	return slices.Contains(testdevice.Device(t).Limits().Cooperative, target.AVX512)
}

// TestAttentionByPairs finds the kernels for heads that are multiples of 16, and bounds their errors: probabilities and
// gradients are rounded to bf16, logsumexps are not.
func TestAttentionByPairs(t *testing.T) {
	if !hasPairs(t) {
		t.Skip("the CPU has no AVX512-BF16")
	}
	for _, o := range []graph.Op{new(op.AttentionOp), new(op.AttentionGradOp)} {
		var tasks []compute.Task
		for _, c := range o.Cases() {
			a, forward := c.Op.(*op.AttentionOp)
			if q := c.Inputs[0]; q.DType == graph.BF16 && q.Shape[3]%16 == 0 && (!forward || a.Form != op.FromPosition) {
				tasks = append(tasks, compute.Case(c))
			}
		}
		assert.Greater(t, len(tasks), 5, o.Name())
		for _, r := range compute.CheckOnce(testdevice.Device(t), tasks, named(pairs)) {
			assert.Equal(t, pairs, r.Candidate, "%s %s", r.Op, r.Case)
			require.True(t, r.OK(), "%s %s: %s", r.Op, r.Case, r.Failure)
			assert.Less(t, r.Error, 1.0/128, "%s %s", r.Op, r.Case)
		}
	}
}

// A number that is not finite makes the results of the queries that see it so, and those of no strip of queries before.
func TestAttentionByPairsKeepsWhatIsNotFinite(t *testing.T) {
	if !hasPairs(t) {
		t.Skip("the CPU has no AVX512-BF16")
	}
	const length, dim, place, before = 100, 16, 70, 63
	x := graph.T(graph.BF16, 1, length, 1, dim)
	types := []graph.Type{x, x, x}
	g, err := graph.Expand(attentionGraph(t, types, false, 0))
	require.NoError(t, err)
	s := load(t, testdevice.Device(t), g, named(pairs))
	defer s.Close()
	for _, c := range []struct {
		input   int
		bad     float64
		further bool // queries after the place see it, too
	}{{0, math.NaN(), false}, {1, math.NaN(), true}, {2, math.NaN(), true}, {2, math.Inf(1), true}, {2, math.Inf(-1), true}} {
		in := graph.Case{Inputs: types}.Values(3)
		in[c.input].Data[place*dim] = c.bad
		y := exec.Decode(graph.F32, outputs(t, s, g, in)["y"])
		finite := func(query int) bool {
			return !slices.ContainsFunc(y[query*dim:(query+1)*dim], func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
		}
		assert.True(t, finite(before), "%v in input %d", c.bad, c.input)
		assert.False(t, finite(place), "%v in input %d", c.bad, c.input)
		assert.Equal(t, !c.further, finite(length-1), "%v in input %d", c.bad, c.input)
	}
}
