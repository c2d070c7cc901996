package webgpujs

import (
	"slices"
	"syscall/js"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

// WebGPU's buffer usages, and the map mode for reading.
const (
	usageMapRead = 1
	usageCopySrc = 4
	usageCopyDst = 8
	usageStorage = 128
	modeRead     = 1
)

// maxInTransit bounds the bytes of writes in progress, and the bytes of reads in progress.
const maxInTransit = 16 << 20

type buffer struct {
	base.Buffer
	d   *Device
	gpu js.Value
}

// Alloc makes a buffer. WebGPU fills it with zeros.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	return d.owner.Alloc(d.do, b, func() (err error) {
		b.gpu, err = d.create(label, size, usageStorage|usageCopySrc|usageCopyDst)
		return err
	})
}

// create makes a native buffer.
func (d *Device) create(label string, size int64, usage int) (b js.Value, err error) {
	err = d.scoped(func() { b = d.gpu.Call("createBuffer", object{"label": label, "size": size, "usage": usage}) })()
	return b, err
}

// Release frees the memory when enqueued work is done with it. Programs that bind the buffer can no longer run.
func (b *buffer) Release() { b.d.owner.ReleaseWith(b.d.do, b, b.free) }

func (b *buffer) free() {
	b.gpu.Call("destroy")
}

// Write copies data and enqueues the upload. It waits while 16 MiB are in transit.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.do("write", base.Label(b), func() error {
		n := int64(len(data))
		if err := d.owner.Checker().Transfer("write", b, offset, n); err != nil {
			return err
		}
		if d.uploads.written > 0 && d.uploads.written+n > maxInTransit {
			if _, err := await(d.queue.Call("onSubmittedWorkDone")); err != nil {
				return err
			}
			d.uploads.written = 0
		}
		d.uploads.written += n
		if !d.uploads.bytes.Truthy() || d.uploads.bytes.Length() < len(data) {
			d.uploads.bytes = js.Global().Get("Uint8Array").New(len(data))
		}
		js.CopyBytesToJS(d.uploads.bytes, data)
		d.submitted(func() { d.queue.Call("writeBuffer", b.(*buffer).gpu, offset, d.uploads.bytes, 0, len(data)) })
		return nil
	})
}

// pending is a read in progress.
type pending struct {
	base.Read
	d    *Device
	size int64
}

// Read enqueues a copy to the host. It waits while 16 MiB are in transit.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	r := &pending{Read: base.NewRead(base.Label(b)), d: d, size: n}
	return d.owner.Read(d.do, b, offset, n, r, func(b *buffer) error {
		if n == 0 {
			r.Expect(0, 0)
			return nil
		}
		for _, staged := d.Allocated(); len(d.reads) > 0 && staged+n > maxInTransit; _, staged = d.Allocated() {
			<-d.reads[0].Done()
		}
		staging, err := d.create("staging", n, usageMapRead|usageCopyDst)
		if err != nil {
			return err
		}
		d.reads = append(d.reads, r)
		d.owner.AddStaging(n)
		d.submitted(func() {
			e := d.gpu.Call("createCommandEncoder")
			e.Call("copyBufferToBuffer", b.gpu, offset, staging, 0, n)
			d.queue.Call("submit", []any{e.Call("finish")})
		})
		data := r.Expect(n, 1)
		then(staging.Call("mapAsync", modeRead), func(js.Value) { r.copyOut(data, staging) }, func(err error) { r.complete(staging, err) })
		return nil
	})
}

// copyOut copies the bytes out of a staging buffer that has been mapped.
func (r *pending) copyOut(data []byte, staging js.Value) {
	r.complete(staging, attempt(func() {
		js.CopyBytesToGo(data, js.Global().Get("Uint8Array").New(staging.Call("getMappedRange")))
	}))
}

func (r *pending) complete(staging js.Value, err error) {
	staging.Call("destroy")
	if lost := r.d.owner.Lost(); err != nil && lost != nil {
		err = lost
	}
	r.d.reads = slices.DeleteFunc(r.d.reads, func(q *pending) bool { return q == r })
	r.d.owner.AddStaging(-r.size)
	r.Complete(err)
}

func (r *pending) Wait() ([]byte, error) {
	<-r.Done()
	data, err := r.Result()
	return data, r.d.owner.Named("read", r.Label(), err)
}
