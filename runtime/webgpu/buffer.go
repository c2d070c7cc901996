package webgpu

import (
	"github.com/cogentcore/webgpu/wgpu"

	"github.com/gpupipe/gpupipe/runtime/device"
)

type buffer struct {
	d     *Device
	label string
	size  int64
	// The owner's:
	gpu      *wgpu.Buffer
	released bool
}

func (b *buffer) Label() string { return b.label }
func (b *buffer) Size() int64   { return b.size }

// Alloc makes a buffer; WebGPU zeroes it.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{d: d, label: label, size: size}
	err := d.do("alloc", label, func() error {
		if err := d.checker().Alloc(label, size, d.used.Load(), d.budget); err != nil {
			return err
		}
		var err error
		b.gpu, err = d.create(label, size, wgpu.BufferUsageStorage|wgpu.BufferUsageCopySrc|wgpu.BufferUsageCopyDst, false)
		if err != nil {
			return err
		}
		d.used.Add(size)
		d.buffers[b] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// create makes a native buffer.
func (d *Device) create(label string, size int64, usage wgpu.BufferUsage, mapped bool) (b *wgpu.Buffer, err error) {
	err = d.scoped(func() error {
		b, err = d.gpu.CreateBuffer(&wgpu.BufferDescriptor{Label: text(label), Size: uint64(size), Usage: usage, MappedAtCreation: mapped})
		return err
	})
	if err != nil && b != nil && d.lost == nil {
		b.Release()
	}
	return b, err
}

// Release gives the memory back once enqueued work is done with it. Programs that bind b can no longer run.
func (b *buffer) Release() {
	// Once the device is closed or lost there is nothing left to release.
	_ = b.d.do("release", b.label, func() error {
		if !b.released {
			delete(b.d.buffers, b)
			b.d.used.Add(-b.size)
			b.free()
		}
		return nil
	})
}

func (b *buffer) free() {
	b.released = true
	b.gpu.Destroy() // bind groups of loaded programs would keep it alive otherwise
	b.gpu.Release()
}
