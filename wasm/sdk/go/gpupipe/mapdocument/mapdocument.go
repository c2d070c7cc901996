//go:build wasip1

// Package mapdocument gives a module the hook map_document.
package mapdocument

import (
	"unsafe"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
)

var hook func(text string, keep func(string))

// Use names the function that is called with each document; what it keeps takes the document's place.
func Use(f func(text string, keep func(string))) { hook = f }

//go:wasmimport gpupipe emit
func emit(text unsafe.Pointer, length uint32)

func keep(text string) { emit(unsafe.Pointer(unsafe.StringData(text)), uint32(len(text))) }

//go:wasmexport map_document
func export(arrays unsafe.Pointer, count int32) int32 {
	a := gpupipe.ArraysOf(arrays, count)
	hook(string(gpupipe.Elements[uint8](&a[0])), keep)
	return 0
}
