//go:build wasip1

// Package state makes a module stateful: one instance of it sees everything, in order, and checkpoints keep what it
// remembers.
package state

import "unsafe"

var (
	give func() []byte
	take func([]byte)
)

// Use names the functions that give the module's state and take it.
func Use(save func() []byte, load func(state []byte)) { give, take = save, load }

//go:wasmexport gpupipe_save
func save(to unsafe.Pointer, room uint32) int32 {
	state := give()
	if len(state) <= int(room) {
		copy(unsafe.Slice((*byte)(to), room), state)
	}
	return int32(len(state))
}

//go:wasmexport gpupipe_load
func load(from unsafe.Pointer, length uint32) int32 {
	take(append([]byte{}, unsafe.Slice((*byte)(from), length)...))
	return 0
}
