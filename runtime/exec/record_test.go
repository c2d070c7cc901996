package exec

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Kernels are those that lowering makes for the planned memory, whether a value takes the memory of another or not.
func TestKernelsFitThePlannedMemory(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		x, w := b.Input("x", graph.T(graph.F32, 64, 64)), b.Variable("w", graph.T(graph.F32, 64, 64))
		h := op.MatMul(x, w, false, false)
		e := op.Exp(op.Sub(h, op.ReduceMax(h, []int{1}, true)))
		b.Output("y", op.MatMul(op.Div(e, op.Sum(e, []int{1}, true)), w, false, true))
	})
	require.NoError(t, err)
	dev := null.New(null.Options{})
	p, err := NewPlan(dev, map[string]*graph.Graph{"p": g}, Options{})
	require.NoError(t, err)
	q := p.programs["p"]
	kept := map[bool]int{}
	for n, group := range q.fused.Groups {
		got, err := p.placed(q, n)
		require.NoError(t, err)
		variants := shaders.NewLowering(q.fused, dev.Limits()).Lower(group, q.storage)
		want := slices.IndexFunc(variants, func(k shaders.Kernel) bool { return k.Name == got.Name })
		assert.Equal(t, variants[want], got, shaders.Label(group))
		kept[sameSharing(q.kernels[n].memory, q.storage)]++
	}
	assert.NotZero(t, kept[true], "no kernel stays")
	assert.NotZero(t, kept[false], "no kernel changes")
}
