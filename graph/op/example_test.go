package op_test

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Softmax of each row, written with ops of the catalogue. op.Softmax is the same in one op.
func Example() {
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 2, 2))
		e := op.Exp(op.Sub(x, op.ReduceMax(x, []int{1}, true)))
		b.Output("softmax", op.Div(e, op.Sum(e, []int{1}, true)))
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := eval.Run(g, map[string]*graph.Tensor{"x": {Type: graph.T(graph.F32, 2, 2), Data: []float64{0, 0, 5, 1000}}}, nil)
	fmt.Println(out["softmax"].Data, err)
	// Output: [0.5 0.5 0 1] <nil>
}
