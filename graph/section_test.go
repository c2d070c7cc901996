package graph_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exchange moves the last two entries of w [5, 2] to the front, and three times the first two behind them. The third
// keeps its place, and its value.
func exchange(b *graph.Builder) {
	t := graph.T(graph.F32, 5, 2)
	front, back := b.Section("w", t, 0, 2), b.Section("w", t, 3, 5)
	b.Assign(front, back)
	b.Assign(back, op.Scale(front, 3))
}

func TestSections(t *testing.T) {
	g, err := graph.Build(exchange)
	require.NoError(t, err)
	assert.Equal(t, []graph.Named{{ID: "w", Type: graph.T(graph.F32, 5, 2)}}, g.Variables())
	before := graph.NewTensor(graph.T(graph.F32, 5, 2))
	for i := range before.Data {
		before.Data[i] = float64(i)
	}
	vars := map[string]*graph.Tensor{"w": before}
	_, err = eval.Run(g, nil, vars)
	require.NoError(t, err)
	assert.Equal(t, []float64{6, 7, 8, 9, 4, 5, 0, 3, 6, 9}, vars["w"].Data)
	assert.Equal(t, 9., before.Data[9], "stored under a new tensor")
	_, err = eval.Run(g, nil, map[string]*graph.Tensor{"w": graph.NewTensor(graph.T(graph.F32, 4, 2))})
	assert.ErrorContains(t, err, `section "w[0:2]" is missing`)
}

// A graph uses a variable as a whole, or sections of it that do not overlap.
func TestSectionsThatOverlap(t *testing.T) {
	typ := graph.T(graph.F32, 5, 2)
	for want, f := range map[string]func(b *graph.Builder){
		`"w[1:3]" of f32[2,2] overlaps "w[2:4]"`: func(b *graph.Builder) { b.Section("w", typ, 2, 4); b.Section("w", typ, 1, 3) },
		`"w[3:5]" of f32[2,2] overlaps "w[2:4]"`: func(b *graph.Builder) { b.Section("w", typ, 2, 4); b.Section("w", typ, 3, 5) },
		`"w" of f32[5,2] overlaps "w[0:1]"`:      func(b *graph.Builder) { b.Section("w", typ, 0, 1); b.Variable("w", typ) },
		`"w[0:1]" overlaps its variable`:         func(b *graph.Builder) { b.Variable("w", typ); b.Section("w", typ, 0, 1) },
		`overlaps "w[0:1]" of f32[5,2]`: func(b *graph.Builder) {
			b.Section("w", typ, 0, 1)
			b.Section("w", graph.T(graph.F32, 6, 2), 1,
				2)
		},
		`section 2:6 of "w", which is f32[5,2]`: func(b *graph.Builder) { b.Section("w", typ, 2, 6) },
		`section 2:2 of "w"`:                    func(b *graph.Builder) { b.Section("w", typ, 2, 2) },
		`section -1:2 of "w"`:                   func(b *graph.Builder) { b.Section("w", typ, -1, 2) },
		`"w" is f32[], which has no axis`:       func(b *graph.Builder) { b.Section("w", graph.T(graph.F32), 0, 1) },
		`variable "w[0:1]" is assigned twice`:   func(b *graph.Builder) { w := b.Section("w", typ, 0, 1); b.Assign(w, w); b.Assign(w, w) },
		`variable "w[0:1]" is f32[1,2], its new value`: func(b *graph.Builder) {
			b.Assign(b.Section("w", typ, 0, 1),
				b.Section("w", typ, 1, 3))
		},
	} {
		_, err := graph.Build(f)
		assert.ErrorContains(t, err, want)
	}
	_, err := graph.Build(func(b *graph.Builder) {
		assert.Same(t, b.Section("w", typ, 3, 5), b.Section("w", typ, 3, 5))
		b.Section("w", typ, 0, 1)
		b.Section("w", typ, 1, 3)
	})
	assert.NoError(t, err)
}
