//go:build wasip1

// Package tokenweights gives a module the hook token_weights.
package tokenweights

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(b *gpupipe.Batch)

// Use names the function that sets what each target counts, after all map_batch hooks. It changes b.Weights only; there
// are no segments and no aligned arrays.
func Use(f func(b *gpupipe.Batch)) { hook = f }

//go:wasmexport token_weights
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	hook(gpupipe.BatchOf(a, false))
	return 0
}
