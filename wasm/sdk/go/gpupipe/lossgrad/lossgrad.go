//go:build wasip1

// Package lossgrad gives a module the hook loss_grad.
package lossgrad

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(s *Sample)

// Sample is what the function works on: it stores the loss of each row, and the gradient of their mean on the logits.
type Sample struct {
	Rows, Vocab      int
	Logits           []float32 // [Rows, Vocab]
	Targets          []uint32
	Losses, Gradient []float32 // [Rows], [Rows, Vocab]
}

// Use names the function that says in plain Go what the loss is: gpupipe hook check compares the graph with it, and
// nothing else calls it.
func Use(f func(s *Sample)) { hook = f }

//go:wasmexport loss_grad
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	hook(&Sample{int(a[0].Dims()[0]), int(a[0].Dims()[1]), gpupipe.Elements[float32](&a[0]), gpupipe.Elements[uint32](&a[1]),
		gpupipe.Elements[float32](&a[2]), gpupipe.Elements[float32](&a[3])})
	return 0
}
