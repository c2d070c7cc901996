package compute_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
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

// needPairs skips a test of the kernels where the CPU does not run them.
func needPairs(t *testing.T) {
	t.Helper()
	if !hasPairs(t) {
		t.Skip("the CPU has no AVX512-BF16")
	}
}

// TestAttentionByPairs finds the kernels for heads that are multiples of 16, and bounds their errors: probabilities and
// gradients are rounded to bf16. Logsumexps are not: products of two bf16 are exact in f32, and all sums are of f32,
// so logsumexps meet the tolerance of f32.
func TestAttentionByPairs(t *testing.T) {
	needPairs(t)
	var logsumexps []compute.Task
	for _, o := range []graph.Op{new(op.AttentionOp), new(op.AttentionGradOp)} {
		var tasks []compute.Task
		for _, c := range o.Cases() {
			a, forward := c.Op.(*op.AttentionOp)
			if q := c.Inputs[0]; q.DType == graph.BF16 && q.Shape[3]%16 == 0 && (!forward || a.Form != op.FromPosition) {
				tasks = append(tasks, compute.Case(c))
				if forward {
					logsumexps = append(logsumexps, only(t, compute.Case(c), "y1"))
				}
			}
		}
		assert.Greater(t, len(tasks), 5, o.Name())
		checkPairs(t, tasks, 1.0/128)
	}
	checkPairs(t, logsumexps, compute.DefaultTolerance)
}

// checkPairs runs tasks by the kernels, and bounds their errors.
func checkPairs(t *testing.T, tasks []compute.Task, bound float64) {
	t.Helper()
	for _, r := range compute.CheckOnce(testdevice.Device(t), tasks, named(pairs)) {
		assert.Contains(t, r.Candidate, pairs, "%s %s", r.Op, r.Case)
		require.True(t, r.OK(), "%s %s: %s", r.Op, r.Case, r.Failure)
		assert.Less(t, r.Error, bound, "%s %s", r.Op, r.Case)
	}
}

// only returns a task with one of its outputs.
func only(t *testing.T, task compute.Task, output string) compute.Task {
	t.Helper()
	g := *task.Graph
	g.Outputs = slices.DeleteFunc(slices.Clone(g.Outputs), func(o graph.Output) bool { return o.Name != output })
	require.Len(t, g.Outputs, 1)
	task.Graph = &g
	return task
}

// A query's largest score grows from one block of keys to the next by more than a kernel lets pass without scaling its
// sums: by 9 in the exponent of 2, for one key. The 64 keys before it keep a tenth of the probability. Gradients of
// scores are then differences of almost equal numbers, one of which has rounded factors: their errors are larger.
func TestAttentionByPairsScalesSums(t *testing.T) {
	needPairs(t)
	const length, dim, block = 210, 16, 64
	x := graph.T(graph.BF16, 1, length, 1, dim)
	types := []graph.Type{x, x, x}
	in := graph.Case{Inputs: types, Fill: func(i, j int) float64 {
		key, first := j/dim, j%dim == 0
		switch {
		case i == 0 && first:
			return 128
		case i == 1 && first && key%block == 0:
			return 0.2 * float64(key/block)
		case i == 1 && first:
			return 0
		}
		y := float64((j*7919+i*104729)%2003-1001) / 1000
		if i == 0 {
			y /= 8
		}
		return y
	}}.Values(0)
	task := compute.Task{Op: "attention", Name: "growing scores", Graph: attentionGraph(t, types, false, 0), Runs: 1,
		Inputs: map[string]*graph.Tensor{"x0": in[0], "x1": in[1], "x2": in[2]}, Tolerance: 1.0 / 32}
	for output, bound := range map[string]float64{"y": 1.0 / 128, "d0": 1.0 / 32, "d1": 1.0 / 64, "d2": 1.0 / 128} {
		checkPairs(t, []compute.Task{only(t, task, output)}, bound)
	}
	lse := compute.Case(graph.Case{Op: new(op.AttentionOp), Inputs: types})
	lse.Inputs = task.Inputs
	checkPairs(t, []compute.Task{only(t, lse, "y1")}, compute.DefaultTolerance)
}

// Kernels of gradients keep Σ dy·y of all queries of a head of keys, but not of 32 heads of 520 queries.
// Gradients of keys and values are then sums of 16,640 terms.
func TestAttentionGradientsOfManyQueries(t *testing.T) {
	tier.Rest(t)
	const heads, length, dim = 32, 520, 16
	for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
		if dtype == graph.BF16 {
			needPairs(t)
		}
		q, kv := graph.T(dtype, 1, length, heads, dim), graph.T(dtype, 1, length, 1, dim)
		types := []graph.Type{q, kv, kv}
		in := graph.Case{Inputs: types}.Values(0)
		task := compute.Task{Op: "attention", Name: "many queries", Graph: attentionGraph(t, types, false, 0), Runs: 1, Tolerance: 1e-5,
			Inputs: map[string]*graph.Tensor{"x0": in[0], "x1": in[1], "x2": in[2]}}
		if dtype == graph.F32 {
			for _, r := range compute.CheckOnce(testdevice.Device(t), []compute.Task{task}, nil) {
				require.True(t, r.OK(), r.Failure)
			}
			continue
		}
		task.Tolerance = 1.0 / 32
		checkPairs(t, []compute.Task{task}, 1.0/32)
	}
}

// A NaN or infinity reaches the queries that see it and those of their strip.
func TestAttentionByPairsKeepsWhatIsNotFinite(t *testing.T) {
	needPairs(t)
	const length, dim, place, before = 100, 16, 90, 87 // the last query of the strip before
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
		out := outputs(t, s, g, in)
		finite := func(output string, row int) bool {
			x := exec.Decode(graph.F32, out[output])[row*dim : (row+1)*dim]
			return !slices.ContainsFunc(x, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
		}
		for _, output := range []string{"y", "d0", "d1", "d2"} {
			of := fmt.Sprintf("%s of %v in input %d", output, c.bad, c.input)
			earlier := output == "y" || output == "d0" // keys get gradients of all queries that see them
			assert.Equal(t, earlier, finite(output, before), of)
			assert.False(t, finite(output, place), of)
			assert.Equal(t, !c.further, finite(output, length-1), of)
		}
	}
}
