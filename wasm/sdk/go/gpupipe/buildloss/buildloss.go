//go:build wasip1

// Package buildloss gives a module the hook build_loss.
package buildloss

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func() gpupipe.Value

// Use names the function that builds the loss of logits f32 [N, V] and targets u32 [N]: f32 [N], whose mean is taken,
// or one f32.
func Use(f func(logits, targets gpupipe.Value) gpupipe.Value) {
	hook = func() gpupipe.Value { return f(gpupipe.Input("logits"), gpupipe.Input("targets")) }
}

// UseInputs names one that asks for its inputs itself, with gpupipe.Input: logits that it does not ask for are not
// computed.
func UseInputs(f func() gpupipe.Value) { hook = f }

//go:wasmexport build_loss
func export(_ unsafe.Pointer, _ int32) int32 {
	return hook().Handle()
}
