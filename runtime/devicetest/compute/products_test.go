package compute_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Products whose sum is taken in parts, which only GPUs are offered: the parts are kept in scratch memory between
// passes.
func TestProductsInParts(t *testing.T) {
	tier.Rest(t)
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	c := graph.Case{Op: new(op.MatMulOp), Tolerance: 1e-5, Inputs: []graph.Type{{DType: graph.F32, Shape: graph.Shape{40, 2000}},
		{DType: graph.F32, Shape: graph.Shape{2000, 24}}}}
	split := 0
	for _, r := range compute.Check(hardware{d}, []compute.Task{compute.Case(c)}) {
		assert.True(t, r.OK(), "%s: %s", r.Candidate, r.Failure)
		if strings.Contains(r.Candidate, "split") {
			split++
		}
	}
	assert.Positive(t, split)
}

// Products of a matrix with itself, to which it is added: one array is both operands, and is read by the epilogue.
func TestSquaresForGPUs(t *testing.T) {
	tier.Rest(t)
	d := testdevice.Translated(t)
	x := graph.T(graph.F32, 2, 28, 28)
	var tasks []compute.Task
	for trans := range 4 {
		g, err := graph.Build(func(b *graph.Builder) {
			a := b.Input("x", x)
			b.Output("y", op.Add(a, op.Scale(op.MatMul(a, a, trans&1 != 0, trans&2 != 0), 2)))
		})
		require.NoError(t, err)
		tasks = append(tasks, compute.Task{Op: "square", Name: fmt.Sprint(trans), Graph: g, Runs: 1, Tolerance: 1e-5,
			Inputs: map[string]*graph.Tensor{"x": graph.Case{Inputs: []graph.Type{x}}.Values(3)[0]}})
	}
	tasks = append(tasks, placed())
	tiles := map[string]bool{}
	for _, r := range compute.Check(hardware{watched(t, d)}, tasks) {
		assert.True(t, r.OK(), "%s, %s: %s", r.Case, r.Candidate, r.Failure)
		if strings.Contains(r.Candidate, "tile") {
			tiles[r.Case] = true
		}
	}
	assert.Len(t, tiles, len(tasks))
}

// placed is a product whose epilogue reads other arrays at places that data and edges decide.
func placed() compute.Task {
	in := []graph.Type{graph.T(graph.F32, 20, 8), graph.T(graph.F32, 8, 12), graph.T(graph.F32, 5, 12), graph.T(graph.U32, 20),
		graph.T(graph.F32, 20, 7)}
	values := graph.Case{Inputs: in}.Values(3)
	task := compute.Task{Op: "placed", Runs: 1, Tolerance: 1e-5, Inputs: map[string]*graph.Tensor{}}
	for i := range values[3].Data {
		values[3].Data[i] = float64(i) // most lie behind the table, and mean its last row
	}
	var err error
	task.Graph, err = graph.Build(func(b *graph.Builder) {
		x := make([]*graph.Value, len(in))
		for i := range in {
			name := fmt.Sprint("x", i)
			task.Inputs[name] = values[i]
			x[i] = b.Input(name, in[i])
		}
		y := op.Add(op.MatMul(x[0], x[1], false, false), op.Embedding(x[2], x[3]))
		b.Output("y", op.Add(y, op.Concat(1, x[4], op.Slice(x[4], 1, 2, 7))))
	})
	if err != nil {
		panic(err)
	}
	return task
}

// byWorkgroups is a Chooser of kernels in assembly, which counts them.
type byWorkgroups map[string]int

func (c byWorkgroups) Choose(_ device.Device, label string, ks []shaders.Kernel, fallback int) (int, error) {
	for i, k := range ks {
		if strings.HasPrefix(k.Name, "matrix2") {
			c[label]++
			return i, nil
		}
	}
	return fallback, nil
}

// Products of 16-bit floats have kernels in assembly on devices that accept it, and their programs keep the device's
// limits. A product whose operands share memory has none: bindings must not overlap, and an assembled kernel has one
// for each operand.
func TestProductsInAssembly(t *testing.T) {
	tier.Rest(t)
	limits := target.DefaultLimits()
	limits.Assembly = true
	limits.Flexible = []target.FlexibleMatrix{{M: 32, N: 32, K: 16, Input: "f16", Result: "f32", Invocations: 128, Largest: 256,
		Reserved: 1024}}
	for name, c := range map[string]struct {
		y      func(a, b *graph.Value) *graph.Value
		kernel bool
	}{
		"plain":    {func(a, b *graph.Value) *graph.Value { return op.MatMul(a, b, false, true) }, true},
		"epilogue": {func(a, b *graph.Value) *graph.Value { return op.Cast(op.Exp(op.MatMul(a, b, false, true)), graph.F16) }, true},
		"square":   {func(a, _ *graph.Value) *graph.Value { return op.MatMul(a, a, false, true) }, false},
	} {
		g, err := graph.Build(func(b *graph.Builder) {
			typ := graph.Type{DType: graph.F16, Shape: graph.Shape{72, 4000}}
			b.Output("y", c.y(b.Input("a", typ), b.Input("b", typ)))
		})
		require.NoError(t, err)
		kernels := byWorkgroups{}
		plan, err := exec.NewPlan(null.New(null.Options{Limits: &limits}), map[string]*graph.Graph{"g": g}, exec.Options{Tune: kernels})
		require.NoError(t, err)
		assert.Equal(t, c.kernel, len(kernels) > 0, name)
		s, err := plan.Load()
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
}
