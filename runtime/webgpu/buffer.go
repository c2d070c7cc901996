package webgpu

import (
	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

type buffer struct {
	base.Buffer
	d   *Device
	gpu *wgpu.Buffer // used by the owner's goroutine
}

// Alloc makes a buffer. WebGPU fills it with zeros.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	return d.owner.Alloc(d.do, b, func() (err error) {
		b.gpu, err = d.create(label, size, wgpu.BufferUsageStorage|wgpu.BufferUsageCopySrc|wgpu.BufferUsageCopyDst, false)
		return err
	})
}

// create makes a native buffer.
func (d *Device) create(label string, size int64, usage wgpu.BufferUsage, mapped bool) (b *wgpu.Buffer, err error) {
	err = d.scoped(func() error {
		b, err = d.gpu.CreateBuffer(&wgpu.BufferDescriptor{Label: text(label), Size: uint64(size), Usage: usage, MappedAtCreation: mapped})
		return err
	})
	if err != nil && b != nil && d.owner.Lost() == nil {
		b.Release()
	}
	return b, err
}

// Release frees the memory when enqueued work is done with it. Programs that bind the buffer can no longer run.
func (b *buffer) Release() { b.d.owner.ReleaseWith(b.d.do, b, b.free) }

func (b *buffer) free() {
	b.gpu.Destroy() // bind groups of loaded programs would keep it alive otherwise
	b.gpu.Release()
}
