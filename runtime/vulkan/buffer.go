//go:build linux

package vulkan

/*
#include "import.h"
*/
import "C"

import (
	vk "github.com/vulkan-go/vulkan"

	"github.com/gpupipe/gpupipe/runtime/device"
)

type buffer struct {
	d     *Device
	label string
	size  int64
	// Under d.mu:
	handle   vk.Buffer
	place    place
	released bool
	imported C.gv_imported // of one whose memory is the host's
	freed    func()        // of the same, else nil
}

func (b *buffer) Label() string { return b.label }
func (b *buffer) Size() int64   { return b.size }

// Alloc makes a buffer; the zeros are the first that the queue writes to it.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{d: d, label: label, size: size}
	err := d.do("alloc", label, func() (err error) {
		if err := d.checker().Alloc(label, size, d.used.Load(), d.budget); err != nil {
			return err
		}
		if b.handle, b.place, err = d.heap.buffer(size); err != nil {
			return err
		}
		d.used.Add(size)
		d.buffers[b] = struct{}{}
		d.batch.fill(device.Range{Buffer: b, Size: size})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Release gives the memory back once enqueued work is done with it. Programs that bind b can no longer run.
func (b *buffer) Release() {
	// Once the device is closed or lost there is nothing left to release.
	_ = b.d.do("release", b.label, func() error {
		if !b.released {
			b.released = true
			delete(b.d.buffers, b)
			if b.freed == nil {
				b.d.used.Add(-b.size)
			}
			b.d.batch.forget(b)
			b.d.discard(b.free)
		}
		return nil
	})
}

func (b *buffer) free() {
	if b.freed != nil {
		C.gv_free_imported(b.d.importer, &b.imported)
		b.freed()
		return
	}
	vk.DestroyBuffer(b.d.gpu, b.handle, nil)
	b.d.heap.give(b.place)
}
