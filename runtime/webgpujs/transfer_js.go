package webgpujs

import (
	"slices"
	"syscall/js"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// WebGPU's buffer usages, and the map mode for reading.
const (
	usageMapRead = 1
	usageCopySrc = 4
	usageCopyDst = 8
	usageStorage = 128
	modeRead     = 1
)

// mostUnderWay bounds the bytes of writes, and those of reads, that have not arrived.
const mostUnderWay = 16 << 20

type buffer struct {
	d        *Device
	label    string
	size     int64
	gpu      js.Value
	released bool
}

func (b *buffer) Label() string { return b.label }
func (b *buffer) Size() int64   { return b.size }

// Alloc makes a buffer; WebGPU zeroes it.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{d: d, label: label, size: size}
	err := d.do("alloc", label, func() (err error) {
		if err := d.checker().Alloc(label, size, d.used, d.budget); err != nil {
			return err
		}
		if b.gpu, err = d.create(label, size, usageStorage|usageCopySrc|usageCopyDst); err != nil {
			return err
		}
		d.used += size
		d.buffers[b] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// create makes a GPU's buffer.
func (d *Device) create(label string, size int64, usage int) (b js.Value, err error) {
	err = d.scoped(func() { b = d.gpu.Call("createBuffer", object{"label": label, "size": size, "usage": usage}) })()
	return b, err
}

// Release gives the memory back once enqueued work is done with it. Programs that bind b can no longer run.
func (b *buffer) Release() {
	// Once the device is closed or lost there is nothing left to release.
	_ = b.d.do("release", b.label, func() error {
		if !b.released {
			delete(b.d.buffers, b)
			b.d.used -= b.size
			b.free()
		}
		return nil
	})
}

func (b *buffer) free() {
	b.released = true
	b.gpu.Call("destroy")
}

// Write copies data for the queue. It waits when 16 MiB are on their way already.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.do("write", label(b), func() error {
		n := int64(len(data))
		if err := d.checker().Transfer("write", b, offset, n); err != nil {
			return err
		}
		if d.written > 0 && d.written+n > mostUnderWay {
			if _, err := await(d.queue.Call("onSubmittedWorkDone")); err != nil {
				return err
			}
			d.written = 0
		}
		d.written += n
		if !d.bytes.Truthy() || d.bytes.Length() < len(data) {
			d.bytes = js.Global().Get("Uint8Array").New(len(data))
		}
		js.CopyBytesToJS(d.bytes, data)
		d.submitted(func() { d.queue.Call("writeBuffer", b.(*buffer).gpu, offset, d.bytes, 0, len(data)) })
		return nil
	})
}

// pending is a read. Its data and error are there when done is closed.
type pending struct {
	d     *Device
	label string
	size  int64
	done  chan struct{}
	data  []byte
	err   error
}

// Read enqueues a copy to the host. It waits when 16 MiB are on their way already.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	r := &pending{d: d, label: label(b), size: n, done: make(chan struct{})}
	err := d.do("read", r.label, func() error {
		if err := d.checker().Transfer("read", b, offset, n); err != nil {
			return err
		}
		if n == 0 {
			close(r.done)
			return nil
		}
		for len(d.reads) > 0 && d.staged()+n > mostUnderWay {
			<-d.reads[0].done
		}
		staging, err := d.create("staging", n, usageMapRead|usageCopyDst)
		if err != nil {
			return err
		}
		d.reads = append(d.reads, r)
		d.submitted(func() {
			e := d.gpu.Call("createCommandEncoder")
			e.Call("copyBufferToBuffer", b.(*buffer).gpu, offset, staging, 0, n)
			d.queue.Call("submit", []any{e.Call("finish")})
		})
		then(staging.Call("mapAsync", modeRead), func(js.Value) { r.arrived(staging) }, func(err error) { r.ended(staging, err) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// staged is the bytes of reads that have not arrived.
func (d *Device) staged() (n int64) {
	for _, r := range d.reads {
		n += r.size
	}
	return n
}

// arrived takes the bytes out of a staging buffer that has been mapped.
func (r *pending) arrived(staging js.Value) {
	r.data = make([]byte, r.size)
	r.ended(staging, attempt(func() {
		js.CopyBytesToGo(r.data, js.Global().Get("Uint8Array").New(staging.Call("getMappedRange")))
	}))
}

func (r *pending) ended(staging js.Value, err error) {
	staging.Call("destroy")
	if r.err = err; err != nil && r.d.lost != nil {
		r.err = r.d.lost
	}
	r.d.reads = slices.DeleteFunc(r.d.reads, func(q *pending) bool { return q == r })
	close(r.done)
}

func (r *pending) Wait() ([]byte, error) {
	<-r.done
	if r.err != nil {
		return nil, r.d.named("read", r.label, r.err)
	}
	return r.data, nil
}

func label(b device.Buffer) string {
	if b == nil {
		return ""
	}
	return b.Label()
}
