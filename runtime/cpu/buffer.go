//go:build linux && cgo

package cpu

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

type buffer struct {
	base.Buffer
	d      *Device
	memory []byte // outside Go's heap
	freed  func() // gives the memory back
}

// Alloc makes a buffer of memory that the system fills with zeros when it is first accessed.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	return d.owner.Alloc(d.do, b, func() (err error) {
		if b.memory, b.freed, err = d.memory.alloc(size); err != nil {
			return fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
		}
		return nil
	})
}

// ImportAlignment returns the size of a page.
func (d *Device) ImportAlignment() int64 { return int64(os.Getpagesize()) }

// Import makes a buffer of the host's memory, which kernels access directly.
func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, int64(len(memory))), d: d, memory: memory, freed: freed}
	return d.owner.Import(d.do, b, memory, d.ImportAlignment(), func() error { return nil })
}

// Release frees the memory when enqueued work is done with it. Programs that bind the buffer can no longer run.
func (b *buffer) Release() {
	b.d.owner.ReleaseWith(b.d.do, b, func() { b.d.queue.add(unbounded, b.free) })
}

func (b *buffer) free() {
	b.freed()
	b.memory = nil
}

// at returns the memory of a range.
func at(r device.Range) unsafe.Pointer {
	return unsafe.Pointer(&r.Buffer.(*buffer).memory[r.Offset])
}
