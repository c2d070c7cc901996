//go:build unix

package sidecar

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

// Device implements device.Device and device.Timer by a worker process. It checks calls as far as it can without the
// worker. Run, Write and Read do not wait for the worker: an error of enqueued work fails the calls that follow, until
// Sync has returned it.
type Device struct {
	base.Properties
	timer  bool // the worker's device implements device.Timer
	worker *connection
	ended  chan struct{} // closed when Close is done

	loading sync.Mutex // held until a program is loaded, which bounds the bytes in transit

	// queueMu is held while something is added to the queue, also while that waits for room. It guards the rest.
	queueMu sync.Mutex
	owner   *base.Owner[*buffer, *loaded]
	ids     uint64
	closing bool
}

type buffer struct {
	base.Buffer
	d  *Device
	id uint64
}

type loaded struct {
	base.Program
	d  *Device
	id uint64
}

func newDevice(name string) *Device {
	d := &Device{ended: make(chan struct{})}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	d.owner.Describe(device.Info{Name: name}, d.Limits(), 0) // until the worker describes its device
	return d
}

// describe takes what the worker reports about its device.
func (d *Device) describe(x *description) {
	d.owner.Describe(x.Info, x.Limits, x.Budget)
	d.timer = x.Timer
}

// Process returns the worker's process.
func (d *Device) Process() *os.Process { return d.worker.process.cmd.Process }

// Allocated returns the bytes of live buffers, and of the staging memory of the worker's device as last reported.
// Memory that the two processes share is not counted.
func (d *Device) Allocated() (buffers, staging int64) {
	select {
	case <-d.ended:
		return 0, 0
	default:
	}
	buffers, _ = d.Properties.Allocated()
	return buffers, d.worker.staging()
}

// do runs f with queueMu held if the device can be used, and names its error.
func (d *Device) do(op, object string, f func() error) error {
	d.queueMu.Lock()
	defer d.queueMu.Unlock()
	return d.owner.Do(op, object, func() error {
		if err := d.worker.usable(op); err != nil {
			return err
		}
		return f()
	})
}

// newID returns an identifier that the worker has not seen. The caller holds queueMu.
func (d *Device) newID() uint64 {
	d.ids++
	return d.ids
}

// Alloc makes a zeroed buffer.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	answer := newCall("alloc", label)
	_, err := d.owner.Alloc(d.do, b, func() error {
		b.id = d.newID()
		return d.worker.enqueue(&command{op: opAlloc, id: b.id, label: label, n: size}, answer)
	})
	if err != nil {
		return nil, err
	}
	if err := answer.wait(); err != nil {
		d.queueMu.Lock()
		d.owner.Release(b)
		d.queueMu.Unlock()
		return nil, err
	}
	return b, nil
}

func (b *buffer) number() uint64 { return b.id }

func (b *buffer) Release() {
	b.d.queueMu.Lock()
	defer b.d.queueMu.Unlock()
	if b.d.owner.Release(b) {
		b.d.discard(&command{op: opFree, id: b.id})
	}
}

// discard makes the worker release an object that is no longer needed, after the work that was enqueued before. The
// caller holds queueMu.
func (d *Device) discard(c *command) {
	if !d.closing {
		_ = d.worker.enqueue(c, nil) // a lost worker has released it already
	}
}

// Load compiles and binds p.
func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{Program: d.owner.NewProgram(p), d: d}
	d.loading.Lock()
	defer d.loading.Unlock()
	answer := newCall("load", l.Label())
	loaded, err := d.owner.Load(d.do, l, p, func() error {
		l.id = d.newID()
		c := &command{op: opLoad, id: l.id, program: p}
		if n := len(appendContent(nil, c)); n > maxFrame {
			return device.Invalid("the program takes %d bytes to be sent to its worker, at most %d", n, maxFrame)
		}
		return d.worker.enqueue(c, answer)
	})
	if err != nil {
		return nil, err
	}
	if err := answer.wait(); err != nil {
		d.queueMu.Lock()
		d.owner.Unload(l)
		d.queueMu.Unlock()
		return nil, err
	}
	return loaded, nil
}

func (l *loaded) Release() {
	l.d.queueMu.Lock()
	defer l.d.queueMu.Unlock()
	if l.d.owner.Unload(l) {
		l.d.discard(&command{op: opUnload, id: l.id})
	}
}

// Run enqueues a loaded program. It waits while 256 commands are in transit.
func (d *Device) Run(p device.Loaded) error {
	return d.owner.Run(d.do, p, func(l *loaded) error {
		return d.worker.enqueue(&command{op: opRun, id: l.id}, nil)
	})
}

// RunTimed enqueues a loaded program and measures it, if the worker's device can. It waits until the program is in the
// queue of that device.
func (d *Device) RunTimed(p device.Loaded) (device.Timings, error) {
	var queued, measured *call
	err := d.owner.Run(d.do, p, func(l *loaded) error {
		if !d.timer {
			return device.ErrNoTimestamps
		}
		queued, measured = newCall("run", l.Label()), newCall("run", l.Label())
		id := d.newID()
		d.worker.expect(d.newID(), measured) // the worker answers twice, to one identifier and the next
		return d.worker.enqueue(&command{op: opTimed, id: id, buffer: l.id}, queued)
	})
	if err == nil {
		err = queued.wait()
	}
	if err != nil {
		return nil, err
	}
	return timings{measured}, nil
}

type timings struct{ *call }

func (t timings) Wait() ([]time.Duration, error) {
	err := t.wait()
	return t.times, err
}

// Write copies data to shared memory and enqueues the rest. It waits while that memory is full.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.owner.Write(d.do, b, offset, data, d.worker.uploads.most(), func(b *buffer, offset int64, data []byte) error {
		return d.worker.upload(b.id, offset, data)
	})
}

// Read enqueues a copy to the host.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	answer := newCall("read", base.Label(b))
	return d.owner.Read(d.do, b, offset, n, pending{answer}, func(b *buffer) error {
		answer.data = make([]byte, n)
		return d.worker.enqueue(&command{op: opRead, id: d.newID(), buffer: b.id, offset: offset, n: n}, answer)
	})
}

type pending struct{ *call }

func (p pending) Wait() ([]byte, error) {
	if err := p.wait(); err != nil {
		return nil, err
	}
	return p.data, nil
}

// Sync waits until all enqueued work is done, and returns the first error of that work.
func (d *Device) Sync() error {
	answer := newCall("sync", "")
	err := d.do("sync", "", func() error { return d.worker.enqueue(&command{op: opSync, id: d.newID()}, answer) })
	if err != nil {
		return err
	}
	err = answer.wait()
	if failed := d.worker.takeDeferred(); failed != nil {
		return d.owner.Named("sync", "", failed)
	}
	return err
}

// Close waits for enqueued work, and for the worker to end. Closing twice is fine.
func (d *Device) Close() error {
	d.queueMu.Lock()
	if d.closing {
		d.queueMu.Unlock()
		<-d.ended
		return nil
	}
	d.closing = true
	answer := newCall("close", "")
	err := d.worker.enqueue(&command{op: opClose, id: d.newID()}, answer)
	d.owner.Close()
	d.queueMu.Unlock()
	if err == nil {
		err = answer.wait()
	}
	d.worker.end(grace)
	close(d.ended)
	if failed := d.worker.takeDeferred(); err == nil && failed != nil {
		err = d.owner.Named("close", "", failed)
	}
	if errors.Is(err, device.ErrLost) {
		return nil // a loss is no error of closing
	}
	return err
}
