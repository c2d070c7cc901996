package compute_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/cooptest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cooperative is a device that reports cooperative matrices, and computes their kernels without them.
type cooperative struct {
	device.Device
	subgroup int
	size     target.CooperativeMatrix // for f16 and bf16
	memory   int                      // of a workgroup; 0 is the device's
}

func (d cooperative) Limits() target.Limits {
	l := d.Device.Limits()
	l.SubgroupSize = d.subgroup
	for _, half := range []string{"f16", "bf16"} {
		size := d.size
		size.Input, size.Result = half, "f32"
		l.Cooperative = append(l.Cooperative, size)
	}
	if d.memory > 0 {
		l.MaxWorkgroupMemory = d.memory
	}
	return l
}

func (d cooperative) Load(p *device.Program) (device.Loaded, error) {
	scalar := *p
	scalar.Shaders = slices.Clone(p.Shaders)
	for i, s := range scalar.Shaders {
		var err error
		if scalar.Shaders[i].Source, err = cooptest.Scalar(s.Source, d.subgroup); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Label, err)
		}
		scalar.Shaders[i].WorkgroupMemory += cooptest.Memory
	}
	return d.Device.Load(&scalar)
}

func square(side int) target.CooperativeMatrix {
	return target.CooperativeMatrix{M: side, N: side, K: side}
}

// byMatrices are the cases of attention and of its gradient that kernels for matrices of a side take, without the
// longest, whose text differs from others' in numbers only.
func byMatrices(t *testing.T, side int) []compute.Task {
	var tasks []compute.Task
	for _, o := range []graph.Op{new(op.AttentionOp), new(op.AttentionGradOp)} {
		for _, c := range o.Cases() {
			q, k := c.Inputs[0], c.Inputs[1]
			if long := q.Shape.Len()*k.Shape[1] > 1e6; q.DType.Float16() && q.Shape[3]%side == 0 && (!long || window(c) > 0) {
				tasks = append(tasks, compute.Case(c))
			}
		}
	}
	return tasks
}

// TestAttentionByMatrices checks the attention kernels that multiply matrices by subgroups, with matrices and subgroups
// of all sizes that change their text: one lane a subgroup is least work for a device that has every lane compute every
// matrix. Translated into C, most of these kernels compute something else where a barrier is missing.
func TestAttentionByMatrices(t *testing.T) {
	tier.Rest(t)
	d := watched(t, testdevice.Translated(t))
	for i, dev := range []cooperative{
		{Device: d, subgroup: 1, size: square(16)},
		{Device: d, subgroup: 16, size: square(8), memory: 9000},
		{Device: d, subgroup: 1, size: target.CooperativeMatrix{M: 8, N: 8, K: 16}, memory: 12000},
		{Device: d, subgroup: 1, size: target.CooperativeMatrix{M: 8, N: 16, K: 16}, memory: 12000},
	} {
		tasks := byMatrices(t, dev.size.K)
		assert.Greater(t, len(tasks), 8)
		gradients := slices.IndexFunc(tasks, func(t compute.Task) bool { return t.Op == "attention_grad" })
		some := []compute.Task{tasks[gradients-1], tasks[len(tasks)-1]} // the last case of each op
		tasks = [][]compute.Task{tasks, some, some, some}[i]
		for _, r := range compute.CheckOnce(dev, tasks, named("matrices")) {
			assert.Equal(t, "matrices", r.Candidate, "%s %s", r.Op, r.Case)
			assert.True(t, r.OK(), "%s %s: %s", r.Op, r.Case, r.Failure)
		}
	}
}

// A gradient that is not finite, or too large for f16, is not finite after it was rounded for matrices: the optimizer
// is to see it.
func TestAttentionByMatricesKeepsWhatIsNotFinite(t *testing.T) {
	tier.Rest(t)
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	nan := float64(math.Float32frombits(0x7fffffff)) // as devices make it
	for half, bad := range map[graph.DType][]float64{graph.F16: {65520, -1e9, math.Inf(1), nan}, graph.BF16: {math.Inf(-1), nan}} {
		plan, err := exec.NewPlan(cooperative{Device: d, subgroup: 1, size: square(8)},
			map[string]*graph.Graph{"g": valueGradient(t, half)}, exec.Options{Tune: named("matrices")})
		require.NoError(t, err)
		s, err := plan.Load()
		require.NoError(t, err)
		for _, x := range append(bad, 65000) {
			do := make([]float64, 64)
			do[3] = x
			require.NoError(t, s.SetInput("g", "do", exec.Encode(graph.F32, do)))
			require.NoError(t, s.Run("g"))
			p, err := s.Output("g", "dv")
			require.NoError(t, err)
			bits, err := p.Wait()
			require.NoError(t, err)
			dv := exec.Decode(graph.F32, bits)[3]
			assert.Equal(t, x == 65000, !math.IsNaN(dv) && !math.IsInf(dv, 0), "%v of %v: %v", half, x, dv)
		}
		require.NoError(t, s.Close())
	}
}

// valueGradient is the gradient of the values of an attention whose queries, keys and values are zero.
func valueGradient(t *testing.T, half graph.DType) *graph.Graph {
	g, err := graph.Build(func(b *graph.Builder) {
		zero := op.Full(b, graph.F32, 0, 1, 8, 1, 8)
		x := op.Cast(zero, half)
		y := op.Attention(x, x, x, nil)
		b.Output("dv", y.Node.Op.Grad(y.Node, []*graph.Value{b.Input("do", y.Type), nil})[2])
	})
	require.NoError(t, err)
	return g
}

// recorder is a Chooser that keeps the passes of kernels by matrices.
type recorder map[string]shaders.Pass

func (r recorder) Choose(_ device.Device, _ string, ks []shaders.Kernel, fallback int) (int, error) {
	for _, k := range ks {
		if k.Name != "matrices" {
			continue
		}
		for _, p := range k.Passes {
			r[p.Source] = p
		}
	}
	return fallback, nil
}

// Every kernel by matrices, of all head dimensions, becomes SPIR-V, and takes the workgroup memory that it was planned
// with. Each dimension comes with each memory, and with f16 and bf16.
func TestAttentionByMatricesCompiles(t *testing.T) {
	tier.Rest(t)
	compiler, err := spirv.NewCompiler("")
	require.NoError(t, err)
	defer compiler.Close()
	passes := recorder{}
	for i, memory := range []int{16384, 32768, 49152} {
		for dim := 8; dim <= 128; dim += 8 {
			dev := cooperative{Device: null.New(null.Options{}), subgroup: 32, size: square(16 - dim%16), memory: memory}
			if dim%48 == 0 {
				dev.subgroup, dev.size.M = 16, 8
			}
			half := []graph.DType{graph.F16, graph.BF16}[(i+dim/8)%2]
			_, err := exec.NewPlan(dev, map[string]*graph.Graph{"g": attentionAndGradient(t, half, dim)}, exec.Options{Tune: passes})
			require.NoError(t, err)
		}
	}
	assert.Greater(t, len(passes), 100)
	for _, wgsl := range slices.Sorted(maps.Keys(passes)) {
		m, err := compiler.Compile(wgsl, spirv.Float16|spirv.Subgroups|spirv.CooperativeMatrix|spirv.ZeroWorkgroup)
		require.NoError(t, err, wgsl)
		assert.EqualValues(t, passes[wgsl].WorkgroupMemory, m.WorkgroupMemory)
		assert.Equal(t, passes[wgsl].Workgroup, m.Workgroup)
	}
}

// attentionAndGradient has attention with segments, without, and their gradients.
func attentionAndGradient(t *testing.T, half graph.DType, dim int) *graph.Graph {
	kv := graph.T(half, 1, 100, 2, dim)
	g, err := graph.Build(func(b *graph.Builder) {
		q, k, v := b.Input("q", graph.T(half, 1, 100, 4, dim)), b.Input("k", kv), b.Input("v", kv)
		for i, segments := range []*graph.Value{nil, b.Input("segments", graph.T(graph.U32, 1, 100))} {
			y := op.SegmentedAttention(q, k, v, segments)
			b.Output(fmt.Sprint("y", i), y)
			for j, d := range y.Node.Op.Grad(y.Node, []*graph.Value{y, nil})[:3] {
				b.Output(fmt.Sprint("d", i, j), d)
			}
		}
	})
	require.NoError(t, err)
	return g
}
