//go:build wasip1

// Package learningrate gives a module the hook learning_rate.
package learningrate

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(step, steps int64, base float64) float64

// Use names the function that gives the factor on all learning rates of a step; base is what the schedule of the config
// gives.
func Use(f func(step, steps int64, base float64) float64) { hook = f }

//go:wasmexport learning_rate
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	of := gpupipe.Elements[float64](&a[0])
	gpupipe.Elements[float64](&a[1])[0] = hook(int64(of[0]), int64(of[1]), of[2])
	return 0
}
