package outer_test

import (
	"fmt"
	"log"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/optim/outer"
)

// Two replicas that have moved from 1 to 2 and to 4 are averaged. The reference evaluator runs the programs;
// runtime/exec runs the same graphs on a device.
func Example() {
	c := outer.Config{LR: 1, Momentum: 0, Format: "f32", Correction: "plain"}
	full := func(x float64) *graph.Tensor {
		t := graph.NewTensor(graph.T(graph.F32, 1, outer.BlockSize))
		for i := range t.Data {
			t.Data[i] = x
		}
		return t
	}
	run := func(build func(blocks int) (*graph.Graph, error), in map[string]*graph.Tensor) map[string]*graph.Tensor {
		g, err := build(1)
		if err != nil {
			log.Fatal(err)
		}
		out, err := eval.Run(g, in, nil)
		if err != nil {
			log.Fatal(err)
		}
		return out
	}
	base, sum := full(1), full(0)
	for _, weights := range []float64{2, 4} {
		message := run(c.Send, map[string]*graph.Tensor{outer.BaseName: base, outer.WeightsName: full(weights)})
		message[outer.SumName] = sum
		sum = run(c.Add, message)[outer.SumName]
	}
	hyper := graph.NewTensor(graph.T(graph.F32, 4))
	for i, x := range c.Hyperparameters(2) {
		hyper.Data[i] = float64(x)
	}
	out := run(c.Step, map[string]*graph.Tensor{outer.SumName: sum, outer.OuterName: base, outer.MomentumName: full(0),
		outer.HyperparametersInput: hyper})
	fmt.Println(out[outer.OuterName].Data[0])
	// Output: 3
}
