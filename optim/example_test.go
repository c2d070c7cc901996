package optim_test

import (
	"fmt"
	"log"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/optim"
)

// Three steps of SGD on |w|²/2, whose gradient is w. The reference evaluator runs the programs; runtime/exec runs the
// same graphs on a device.
func Example() {
	params := []optim.Param{{Name: "w", Type: graph.T(graph.F32, 2), Gradient: "grad/w"}}
	o, err := optim.New(optim.Config{
		Algorithm: &optim.SGD{LR: 0.5},
		Clip:      5,
		Schedule:  optim.Schedule{Name: "constant"},
	}, params)
	if err != nil {
		log.Fatal(err)
	}
	shard := o.All()
	norms, err := shard.NormSquares()
	if err != nil {
		log.Fatal(err)
	}
	update, err := shard.Update(0)
	if err != nil {
		log.Fatal(err)
	}
	vars := map[string]*graph.Tensor{}
	for _, v := range update.Sources("variable") {
		vars[v.Node.Op.(graph.Source).Label()] = graph.NewTensor(v.Type)
	}
	copy(vars["w"].Data, []float64{4, -3})
	for step := range 3 {
		copy(vars["grad/w"].Data, vars["w"].Data)
		if _, err := eval.Run(norms, nil, vars); err != nil {
			log.Fatal(err)
		}
		h := o.Hyperparameters(step, step > 0)
		input := graph.NewTensor(graph.T(graph.F32, len(h)))
		for i := range h {
			input.Data[i] = h[i].Value
		}
		out, err := eval.Run(update, map[string]*graph.Tensor{optim.HyperparametersInput: input}, vars)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v norm %.2f, w %.3f\n", h, out[optim.NormOutput].Data[0], vars["w"].Data)
	}
	// Output:
	// [{sgd/weight_decay 0} {sgd/lr 0.5}] norm 5.00, w [2.000 -1.500]
	// [{sgd/weight_decay 0} {sgd/lr 0.5}] norm 2.50, w [1.000 -0.750]
	// [{sgd/weight_decay 0} {sgd/lr 0.5}] norm 1.25, w [0.500 -0.375]
}
