//go:build wasip1

// Package buildmodel gives a module the hook build_model.
package buildmodel

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(tokens gpupipe.Value) gpupipe.Value

// Use names the function that builds a model: of tokens u32 [B, T] the logits f32 [B, T, V].
func Use(f func(tokens gpupipe.Value) gpupipe.Value) { hook = f }

//go:wasmexport build_model
func export(_ unsafe.Pointer, _ int32) int32 {
	return hook(gpupipe.Input("tokens")).Handle()
}
