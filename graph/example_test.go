package graph_test

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
)

// A graph of one linear layer. The input is uploaded before each run, the variable outlives runs.
func Example() {
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 1, 3))
		w := b.Variable("w", graph.T(graph.F32, 2, 3))
		b.Output("y", op.MatMul(x, w, false, true)) // x·wᵀ
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range g.Nodes {
		fmt.Println(n.Outputs[0])
	}
	out, err := eval.Run(g,
		map[string]*graph.Tensor{"x": {Type: graph.T(graph.F32, 1, 3), Data: []float64{1, 2, 3}}},
		map[string]*graph.Tensor{"w": {Type: graph.T(graph.F32, 2, 3), Data: []float64{1, 0, 0, 0, 1, 1}}})
	fmt.Println(out["y"].Data, err)
	// Output:
	// input "x" f32[1,3]
	// variable "w" f32[2,3]
	// matmul#2 f32[1,2]
	// [1 5] <nil>
}

// A mistake in a graph is an error that names the op and the scope.
func ExampleBuild() {
	_, err := graph.Build(func(b *graph.Builder) {
		b.Scope("layers.0", func() {
			x := b.Input("x", graph.T(graph.F32, 4, 3))
			op.MatMul(x, x, false, false)
		})
	})
	fmt.Println(err)
	// Output:
	// layers.0: matmul: inputs are f32[4,3] and f32[4,3] (transposed: false, false): inner extents 3 and 4 differ
}
