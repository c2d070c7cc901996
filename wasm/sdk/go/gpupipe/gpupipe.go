//go:build wasip1

// Package gpupipe is for hooks in Go, with Go's own compiler or TinyGo: version 1 of the ABI (docs/HOOKS.md). A hook is
// a function that is given, when the program begins, to the package of its name:
//
//	func init() { buildloss.Use(loss) }
//
//	func loss(logits, targets gpupipe.Value) gpupipe.Value {
//		return logits.LogSoftmax().Pick(targets).Neg().Scale(gpupipe.Config().Number("weight", 1))
//	}
//
//	func main() {}
//
// Build with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared.
package gpupipe

import "unsafe"

//go:wasmimport gpupipe log
func hostLog(text unsafe.Pointer, length uint32)

//go:wasmimport gpupipe fail
func hostFail(text unsafe.Pointer, length uint32)

// Log writes a line for the user.
func Log(text string) { hostLog(address(text), uint32(len(text))) }

// Fail says why the call fails, which should then return.
func Fail(text string) { hostFail(address(text), uint32(len(text))) }

// fatal ends the call, with a reason that the host keeps even where a panic has no text.
func fatal(text string) {
	Fail(text)
	panic(text)
}

func address(s string) unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(s)) }

var (
	held [][]byte // what the host was given must stay where it is
	open func()
	seed uint64
)

// Open names the function that runs before the hook is first called. If it reads the configuration it should read all
// of it: keys that it did not ask for are then reported to the user. The same holds for a function that builds a loss
// or a model.
func Open(f func()) { open = f }

// Seed is the seed of the hook.
func Seed() uint64 { return seed }

//go:wasmexport gpupipe_abi_v1
func version() int32 { return 0 }

//go:wasmexport gpupipe_alloc
func alloc(size uint32) uint32 {
	if size > 1<<31-32 {
		return 0
	}
	b := make([]byte, size+15)
	held = append(held, b)
	return (uint32(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) + 15) &^ 15
}

//go:wasmexport gpupipe_open
func start(text unsafe.Pointer, length uint32, s int64) int32 {
	config = string(unsafe.Slice((*byte)(text), length))
	seed = uint64(s)
	if open != nil {
		open()
	}
	return 0
}
