//go:build linux

package vulkan

/*
#include "import.h"
*/
import "C"

import (
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	vk "github.com/vulkan-go/vulkan"
)

type buffer struct {
	base.Buffer
	d *Device
	// Under d.mu:
	handle   vk.Buffer
	place    place
	imported C.gv_imported // of an imported buffer
	freed    func()        // of an imported buffer
}

// Alloc makes a buffer. The zeros are the first commands of the queue that write to it.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	return d.owner.Alloc(d.do, b, func() (err error) {
		if b.handle, b.place, err = d.heap.buffer(size); err == nil {
			d.queue.batch.fill(device.Range{Buffer: b, Size: size})
		}
		return err
	})
}

// ImportAlignment returns the driver's alignment, at least a page; 0 if it cannot import.
func (d *Device) ImportAlignment() int64 { return d.adapter.ImportAlignment }

// Import makes a buffer in memory of the host.
func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, int64(len(memory))), d: d, freed: freed}
	return d.owner.Import(d.do, b, memory, d.ImportAlignment(), func() error { return b.importMemory(memory) })
}

// Release frees the memory when enqueued work is done with it. Programs that bind the buffer can no longer run.
func (b *buffer) Release() {
	b.d.owner.ReleaseWith(b.d.do, b, func() {
		b.d.queue.batch.forget(b)
		b.d.queue.discard(b.free)
	})
}

func (b *buffer) free() {
	if b.Imported() {
		C.gv_free_imported(b.d.importer, &b.imported)
		b.freed()
		return
	}
	vk.DestroyBuffer(b.d.gpu, b.handle, nil)
	b.d.heap.give(b.place)
}
