package autodiff_test

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
)

// One step of gradient descent on Σ x². The variable has its new value when the run has ended.
func Example() {
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Variable("x", graph.T(graph.F32, 3))
		loss := op.Sum(op.Mul(x, x), nil, false)
		grad := autodiff.Gradients(loss, nil, x)[0]
		b.Output("loss", loss)
		b.Assign(x, op.Sub(x, op.Scale(grad, 0.25)))
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	vars := map[string]*graph.Tensor{"x": {Type: graph.T(graph.F32, 3), Data: []float64{1, -2, 4}}}
	for range 2 {
		out, err := eval.Run(g, nil, vars)
		fmt.Println(out["loss"].Data, vars["x"].Data, err)
	}
	// Output:
	// [21] [0.5 -1 2] <nil>
	// [5.25] [0.25 -0.5 1] <nil>
}
