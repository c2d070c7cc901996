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
	"github.com/gpupipe/gpupipe/runtime/device/base"
	vk "github.com/vulkan-go/vulkan"
)

const maxTransfers = 64 // submissions of Transfer in progress

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

// ImportAlignment returns the driver's alignment, at least a page; 0 if it cannot import.
func (d *Device) ImportAlignment() int64 { return d.adapter.ImportAlignment }

// Import makes a buffer in memory of the host.
func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, int64(len(memory))), d: d, freed: freed}
	err := d.do("import", label, func() error {
		return d.owner.Import(b, memory, d.ImportAlignment(), func() error { return d.importInto(b, memory) })
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// importInto makes the native buffer of imported memory.
func (d *Device) importInto(b *buffer, memory []byte) error {
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

// Transfer enqueues a copy. It waits while 64 transfers are in progress.
func (d *Device) Transfer(from, to device.Range) (device.Pending, error) {
	m := &move{d: d, label: base.Label(from.Buffer)}
	err := d.do("transfer", m.label, func() error {
		if err := d.owner.Checker().Copy(from, to); err != nil {
			return err
		}
		if err := d.queue.room(&d.queue.moving, maxTransfers); err != nil {
			return err
		}
		d.queue.batch.copy(from, to)
		if err := d.queue.submit(); err != nil {
			return err
		}
		m.until = d.queue.submitted
		d.queue.moving = append(d.queue.moving, d.queue.submitted)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// move is a transfer in progress.
type move struct {
	d     *Device
	label string
	until uint64
}

func (m *move) Wait() ([]byte, error) {
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.until <= d.queue.done {
		return nil, nil
	}
	return nil, d.owner.Named("transfer", m.label, d.queue.until(m.until))
}
