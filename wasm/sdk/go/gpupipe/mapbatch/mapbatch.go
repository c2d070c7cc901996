//go:build wasip1

// Package mapbatch gives a module the hook map_batch.
package mapbatch

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(b *gpupipe.Batch)

// Use names the function that is called with each batch of the training, and may change what is in it.
func Use(f func(b *gpupipe.Batch)) { hook = f }

//go:wasmexport map_batch
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	hook(gpupipe.BatchOf(a, true))
	return 0
}
