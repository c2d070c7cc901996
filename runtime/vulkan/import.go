//go:build linux

package vulkan

/*
#include "import.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	vk "github.com/vulkan-go/vulkan"
)

// imports finds out whether a device can access the host's memory, and with which alignment.
func (a *adapter) imports(instance vk.Instance) {
	a.ImportAlignment = int64(C.gv_import_alignment(loader.get, unsafe.Pointer(instance), unsafe.Pointer(a.physical)))
}

// coherent returns the memory types that are visible to the host and coherent, as bits.
func (h *heap) coherent() (bits C.uint32_t) {
	const want = vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit
	for i, t := range h.types {
		if t.flags&vk.MemoryPropertyFlagBits(want) == vk.MemoryPropertyFlagBits(want) {
			bits |= 1 << i
		}
	}
	return bits
}

// importMemory makes the Vulkan buffer of imported memory.
func (b *buffer) importMemory(memory []byte) error {
	d := b.d
	if d.importer == nil {
		if d.importer = C.gv_new_importer(loader.get, unsafe.Pointer(d.instance), unsafe.Pointer(d.gpu)); d.importer == nil {
			return device.ErrNoImport
		}
	}
	r := C.gv_import(d.importer, unsafe.Pointer(&memory[0]), C.uint64_t(len(memory)), d.heap.coherent(), &b.imported)
	if err := refusal(r); err != nil {
		return err
	}
	b.handle = *(*vk.Buffer)(unsafe.Pointer(&b.imported.buffer)) // both are the handle's 64 bits
	return nil
}

// refusal returns the error of an import.
func refusal(r C.int) error {
	switch r {
	case C.GV_NO_MEMORY_TYPE:
		return errors.New("no memory type fits that is coherent between the host and the device")
	case C.GV_INVALID_EXTERNAL_HANDLE:
		return errors.New("the driver refuses this memory")
	}
	return failure(vk.Result(r))
}
