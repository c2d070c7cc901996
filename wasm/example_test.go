package wasm_test

import (
	"context"
	"fmt"
	"os"

	"github.com/gpupipe/gpupipe/wasm"
)

// A module is loaded and checked, an instance of it is opened with a config, and its hook is called with arrays: here
// the learning rate of a step, f64 [3] in and f64 [1] out.
func Example() {
	runtime, err := wasm.NewRuntime(wasm.Config{})
	if err != nil {
		panic(err)
	}
	defer runtime.Close()
	bin, err := os.ReadFile("../examples/hooks/inverse_sqrt.wasm")
	if err != nil {
		panic(err)
	}
	module, err := runtime.Load("inverse_sqrt.wasm", bin, wasm.Limits{})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	instance, err := module.Open(ctx, wasm.Options{Config: []byte(`{"warmup": 4}`)})
	if err != nil {
		panic(err)
	}
	defer instance.Close()
	for step := range 6 {
		factor := []float64{0}
		in := wasm.Of(wasm.In, []float64{float64(step), 6, 1}) // the step, the steps of the run, the schedule's factor
		if _, err := instance.Call(ctx, "learning_rate", step, in, wasm.Of(wasm.Out, factor)); err != nil {
			panic(err)
		}
		fmt.Printf("step %d: %.3f\n", step, factor[0])
	}
	// Output:
	// step 0: 0.250
	// step 1: 0.500
	// step 2: 0.750
	// step 3: 1.000
	// step 4: 0.894
	// step 5: 0.816
}
