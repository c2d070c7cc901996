//go:build linux && cgo

package cpu

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"golang.org/x/sys/unix"
)

type buffer struct {
	base.Buffer
	d      *Device
	memory []byte // outside Go's heap
	freed  func() // gives the memory back
}

// Alloc makes a buffer in memory of its own, which the system fills with zeros when it is first accessed.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	err := d.do("alloc", label, func() error {
		return d.owner.Alloc(b, func() error {
			m, err := mapMemory(size)
			if err != nil {
				return fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
			}
			b.memory, b.freed = m.Bytes, m.Unmap
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

const (
	hugePage = 2 << 20 // bytes
	minHuge  = 8 << 20 // bytes of a buffer in huge pages
)

// mapMemory maps the memory of a buffer. Large buffers lie in huge pages where the system has them: kernels that go
// through a matrix by columns spend their time on address translation otherwise.
func mapMemory(size int64) (*host.Mapping, error) {
	if size < minHuge {
		return host.Map(size, int64(os.Getpagesize()))
	}
	m, err := host.Map(size, hugePage)
	if err == nil {
		_ = unix.Madvise(m.Bytes, unix.MADV_HUGEPAGE) // without them it is only slower
	}
	return m, err
}

// ImportAlignment returns the size of a page.
func (d *Device) ImportAlignment() int64 { return int64(os.Getpagesize()) }

// Import makes a buffer of the host's memory, which kernels access directly.
func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, int64(len(memory))), d: d, memory: memory, freed: freed}
	err := d.do("import", label, func() error {
		return d.owner.Import(b, memory, d.ImportAlignment(), func() error { return nil })
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Release frees the memory when enqueued work is done with it. Programs that bind the buffer can no longer run.
func (b *buffer) Release() {
	// After Close there is nothing left to release.
	_ = b.d.do("release", b.Label(), func() error {
		if b.d.owner.Release(b) {
			b.d.queue.add(unbounded, b.free)
		}
		return nil
	})
}

func (b *buffer) free() {
	b.freed()
	b.memory = nil
}

// at returns the memory of a range.
func at(r device.Range) unsafe.Pointer {
	return unsafe.Pointer(&r.Buffer.(*buffer).memory[r.Offset])
}
