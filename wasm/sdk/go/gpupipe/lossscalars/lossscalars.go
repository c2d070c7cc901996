//go:build wasip1

// Package lossscalars gives a module the hook loss_scalars.
package lossscalars

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(step, steps int64, scalars []float32)

// Use names the function that stores the scalars of a step, in the order in which the loss first asked for them with
// gpupipe.Scalar.
func Use(f func(step, steps int64, scalars []float32)) { hook = f }

//go:wasmexport loss_scalars
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	clock := gpupipe.Elements[float64](&a[0])
	hook(int64(clock[0]), int64(clock[1]), gpupipe.Elements[float32](&a[1]))
	return 0
}
