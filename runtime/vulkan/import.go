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

const maxTransfers = 64 // submissions of Transfer under way

// imports tells whether a device can reach the host's memory, and how that must be aligned.
func (a *adapter) imports(instance vk.Instance) {
	a.ImportAlignment = int64(C.gv_import_alignment(loader.get, unsafe.Pointer(instance), unsafe.Pointer(a.physical)))
}

// coherent are the memory types that host and GPU see alike at all times, as bits.
func (h *heap) coherent() (bits C.uint32_t) {
	const want = vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit
	for i, t := range h.types {
		if t.flags&vk.MemoryPropertyFlagBits(want) == vk.MemoryPropertyFlagBits(want) {
			bits |= 1 << i
		}
	}
	return bits
}

// ImportAlignment is the driver's, at least a page; 0: it has no such memory.
func (d *Device) ImportAlignment() int64 { return d.adapter.ImportAlignment }

// Import makes a buffer that lies in memory of the host.
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

// refusal is the error of an import.
func refusal(r C.int) error {
	switch r {
	case C.GV_NO_MEMORY_TYPE:
		return errors.New("no type of memory fits that the host and the device see alike")
	case C.GV_INVALID_EXTERNAL_HANDLE:
		return errors.New("the driver does not take this memory")
	}
	return failure(vk.Result(r))
}

// Transfer enqueues a copy. It waits while 64 are under way.
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

// move is a transfer.
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
