//go:build wasip1

// Package onmetrics gives a module the hook on_metrics.
package onmetrics

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(metrics gpupipe.Object) (stop bool)

// Use names the function that receives each step's metrics, a JSON object; if it returns true the run ends soon.
func Use(f func(metrics gpupipe.Object) (stop bool)) { hook = f }

//go:wasmexport on_metrics
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	if hook(gpupipe.ObjectOf(string(gpupipe.Elements[uint8](&a[0])))) {
		return 1
	}
	return 0
}
