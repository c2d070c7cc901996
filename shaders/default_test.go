package shaders_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limits are WebGPU's, of a GPU or of software.
func limits(software bool) target.Limits {
	l := target.DefaultLimits()
	l.Software = software
	return l
}

// lowered are the kernels of the only group that a graph of one input is, and the static choice among them.
func lowered(t *testing.T, x graph.Type, build func(x *graph.Value) *graph.Value, lim target.Limits) (ks []shaders.Kernel, choice int) {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) { b.Output("y", build(b.Input("x", x))) })
	require.NoError(t, err)
	r, err := fuse.Run(g, fuse.Options{MaxBindings: lim.MaxBindings, OffsetAlignment: 256})
	require.NoError(t, err)
	require.Len(t, r.Groups, 1)
	ks = shaders.NewLowering(r, lim).Lower(r.Groups[0], func(v *graph.Value) string { return fmt.Sprint(v.Node.ID, v.Index) })
	return ks, shaders.Default(ks, r.Groups[0], lim)
}

func sum(axes ...int) func(x *graph.Value) *graph.Value {
	return func(x *graph.Value) *graph.Value { return op.Sum(x, axes, false) }
}

// What is chosen without timing: enough invocations for a GPU, and neighbors that read neighbors.
func TestStaticChoiceOfReductions(t *testing.T) {
	for _, c := range []struct {
		name          string
		shape         graph.Shape
		build         func(x *graph.Value) *graph.Value
		gpu, software string
		busy          int // least invocations of a GPU's first pass
	}{
		{"gradient of a norm's weight", graph.Shape{16384, 576}, sum(0), "spread", "split", 1 << 16},
		{"gradient of a short one", graph.Shape{65536, 64}, sum(0), "spread", "split", 1 << 13},
		{"gradient of a wide bias", graph.Shape{8, 2048, 4608}, sum(0, 1), "spread", "serial", 1 << 16},
		{"sum over a batch", graph.Shape{128, 65536}, sum(0), "serial", "serial", 1 << 16},
		{"square of all gradients of a table", graph.Shape{49152, 576}, sum(0, 1), "spread", "split", 1 << 17},
		{"squares of matrices", graph.Shape{2, 576, 1536}, sum(1, 2), "spread", "split", 1 << 17},
		{"squares of norms", graph.Shape{272}, sum(0), "workgroup32", "split", 1},
		{"means of tokens", graph.Shape{16384, 576}, sum(1), "workgroup32", "serial", 1 << 16},
		{"means of a few tokens", graph.Shape{1024, 576}, sum(1), "workgroup32", "split", 1 << 13},
		{"sums of logits", graph.Shape{4096, 49152}, sum(1), "workgroup256", "serial", 1 << 16},
		{"softmax of logits", graph.Shape{4096, 49152}, op.Softmax, "workgroup256", "serial", 1 << 16},
		{"softmax of a head's", graph.Shape{65536, 64}, op.Softmax, "workgroup32", "serial", 1 << 16},
		{"means of pairs", graph.Shape{65536, 2}, sum(1), "serial", "serial", 1 << 16},
	} {
		x := graph.Type{DType: graph.F32, Shape: c.shape}
		ks, i := lowered(t, x, c.build, limits(false))
		assert.True(t, strings.HasPrefix(ks[i].Name, c.gpu), "%s: %s", c.name, ks[i].Name)
		first := ks[i].Passes[0]
		assert.GreaterOrEqual(t, first.Groups[0]*first.Groups[1]*first.Workgroup[0], c.busy, "%s: %s", c.name, ks[i].Name)
		ks, i = lowered(t, x, c.build, limits(true))
		assert.True(t, strings.HasPrefix(ks[i].Name, c.software), "%s: %s", c.name, ks[i].Name)
		for _, k := range ks {
			assert.NotContains(t, k.Name, "spread", "%s", c.name)
		}
	}
}

// The products of Newton–Schulz: two operands in the same memory, which the result's sum reads too, are no reason for
// the naive kernel.
func TestStaticChoiceOfSquares(t *testing.T) {
	for name, build := range map[string]func(x *graph.Value) *graph.Value{
		"a·a + a": func(x *graph.Value) *graph.Value { return op.Add(x, op.Scale(op.MatMul(x, x, false, false), 2)) },
		"aᵀ·aᵀ":   func(x *graph.Value) *graph.Value { return op.MatMul(x, x, true, true) },
		"x·xᵀ":    func(x *graph.Value) *graph.Value { return op.MatMul(x, x, false, true) },
		"xᵀ·x":    func(x *graph.Value) *graph.Value { return op.MatMul(x, x, true, false) },
	} {
		for _, software := range []bool{false, true} {
			ks, i := lowered(t, graph.T(graph.F32, 2, 576, 576), build, limits(software))
			assert.NotEqual(t, "naive", ks[i].Name, name)
		}
	}
}

// A CPU computes half of what the graph shows or marks to be symmetric.
func TestHalvesOfProducts(t *testing.T) {
	lim := limits(true)
	lim.Native, lim.MaxBindings = true, 64
	for name, c := range map[string]struct {
		half  bool
		build func(x *graph.Value) *graph.Value
	}{
		"x·xᵀ":   {true, func(x *graph.Value) *graph.Value { return op.MatMul(x, x, false, true) }},
		"xᵀ·x":   {true, func(x *graph.Value) *graph.Value { return op.MatMul(x, x, true, false) }},
		"x·x":    {false, func(x *graph.Value) *graph.Value { return op.MatMul(x, x, false, false) }},
		"marked": {true, func(x *graph.Value) *graph.Value { return op.SymmetricMatMul(x, x) }},
	} {
		ks, _ := lowered(t, graph.T(graph.F32, 2, 576, 576), c.build, lim)
		i := slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == "native" })
		require.GreaterOrEqual(t, i, 0, name)
		p := ks[i].Passes
		assert.Equal(t, c.half, strings.Contains(p[len(p)-1].Source, "#define SYMMETRIC 1"), name)
	}
}
