// Package null is a device that executes nothing. It counts what it is told, and refuses every breach of WebGPU's
// default limits, or of the limits given. It holds no contents: reads give zeros. It can take its time, so that schedules and
// those who wait for devices can be measured without any.
package null

import (
	"errors"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options of a null device.
type Options struct {
	Name         string         // "null:0" when empty
	Limits       *target.Limits // WebGPU's default limits when nil
	MemoryBudget int64          // bytes; 0: no budget
	// Latency is how long a run of the program of that label occupies the in-order queue; nil: nothing takes time. It is
	// called by Run. What is enqueued later, and reads, wait for it.
	Latency func(program string) time.Duration
	// LoseAfter is how many operations the device does before it is lost: those that follow, and reads under way, give device.ErrLost;
	// 0: it never is.
	LoseAfter int
	// ImportAlignment is that of the memory that it imports, in bytes; 0: it imports none.
	ImportAlignment int64
}

// Counts is what a device has been told so far.
type Counts struct {
	Programs, Dispatches, Copies, Reads, Writes, Transfers int64
	BytesCopied, BytesRead, BytesWritten, BytesTransferred int64
}

// Device implements device.Device.
type Device struct {
	name   string
	limits target.Limits
	budget int64
	align  int64 // of memory that it imports

	latency func(program string) time.Duration
	ended   chan struct{} // closed by Close

	mu       sync.Mutex
	left     int // operations before it is lost; negative: it never is
	closed   bool
	used     int64
	counts   Counts
	imported map[*buffer]struct{} // and not released
	idle     time.Time            // when the queue will be empty: all that there is of a queue
}

type buffer struct {
	d        *Device
	label    string
	size     int64
	memory   []byte // of one that is imported
	freed    func()
	released bool // under d.mu
}

type loaded struct {
	d        *Device
	label    string
	counts   Counts // of one run
	buffers  []device.Buffer
	released bool // under d.mu
}

// pending is a read of zeros that arrives when all that was enqueued before it is done.
type pending struct {
	d    *Device
	op   string
	data []byte
	at   time.Time
}

// New makes a null device.
func New(o Options) *Device {
	d := &Device{name: o.Name, limits: target.DefaultLimits(), budget: o.MemoryBudget, align: o.ImportAlignment, latency: o.Latency,
		ended: make(chan struct{}), left: o.LoseAfter, imported: map[*buffer]struct{}{}}
	if o.LoseAfter == 0 {
		d.left = -1
	}
	if d.name == "" {
		d.name = "null:0"
	}
	if o.Limits != nil {
		d.limits = *o.Limits
	}
	return d
}

func (d *Device) Info() device.Info {
	return device.Info{Name: d.name, Adapter: "none", Kind: device.Null}
}

func (d *Device) Limits() target.Limits { return d.limits }

// Counts returns what the device has been told so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

func (d *Device) checker() device.Checker {
	return device.Checker{Device: d.name, Limits: d.limits, Own: d.own}
}

var (
	errForeign  = errors.New("does not belong to this device")
	errReleased = errors.New("is released")
)

func (d *Device) own(b device.Buffer) error {
	nb, ok := b.(*buffer)
	switch {
	case !ok || nb == nil || nb.d != d:
		return errForeign
	case nb.released:
		return errReleased
	}
	return nil
}

// enter locks the device, unless it is closed or lost.
func (d *Device) enter(op, object string) error {
	d.mu.Lock()
	switch {
	case d.closed:
		d.mu.Unlock()
		return d.fail(op, object, device.ErrClosed)
	case d.left == 0:
		d.mu.Unlock()
		return d.fail(op, object, device.ErrLost)
	}
	if d.left > 0 {
		d.left--
	}
	return nil
}

func (d *Device) fail(op, object string, cause error) error {
	return &device.Error{Op: op, Object: object, Device: d.name, Cause: cause}
}

func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	if err := d.enter("alloc", label); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if err := d.checker().Alloc(label, size, d.used, d.budget); err != nil {
		return nil, err
	}
	d.used += size
	return &buffer{d: d, label: label, size: size}, nil
}

func (b *buffer) Label() string { return b.label }
func (b *buffer) Size() int64   { return b.size }

func (b *buffer) Release() {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if !b.released && !b.d.closed && b.memory == nil {
		b.d.used -= b.size
	}
	b.released = true
	b.d.free(b)
}

func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	label := ""
	if p != nil {
		label = p.Label
	}
	if err := d.enter("load", label); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if err := d.checker().Program(p); err != nil {
		return nil, err
	}
	l := &loaded{d: d, label: label, counts: Counts{Programs: 1}}
	seen := map[device.Buffer]bool{}
	for _, c := range p.Commands {
		if c.Shader == device.Copy {
			l.counts.Copies++
			l.counts.BytesCopied += c.Args[0].Size
		} else {
			l.counts.Dispatches++
		}
		for _, r := range c.Args {
			if !seen[r.Buffer] {
				seen[r.Buffer] = true
				l.buffers = append(l.buffers, r.Buffer)
			}
		}
	}
	return l, nil
}

func (l *loaded) Release() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.released = true
}

func (d *Device) Run(l device.Loaded) error {
	nl, ok := l.(*loaded)
	if !ok || nl == nil || nl.d != d {
		return d.fail("run", "", device.Invalid("the program %v", errForeign))
	}
	if err := d.enter("run", nl.label); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if nl.released {
		return d.fail("run", nl.label, device.Invalid("the program %v", errReleased))
	}
	for _, b := range nl.buffers {
		if err := d.own(b); err != nil {
			return d.fail("run", nl.label, device.Invalid("buffer %q %v", b.Label(), err))
		}
	}
	d.counts.Programs++
	d.counts.Dispatches += nl.counts.Dispatches
	d.counts.Copies += nl.counts.Copies
	d.counts.BytesCopied += nl.counts.BytesCopied
	if d.latency != nil {
		if now := time.Now(); d.idle.Before(now) {
			d.idle = now
		}
		d.idle = d.idle.Add(d.latency(nl.label))
	}
	return nil
}

func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	if err := d.enter("write", ""); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if err := d.checker().Transfer("write", b, offset, int64(len(data))); err != nil {
		return err
	}
	d.counts.Writes++
	d.counts.BytesWritten += int64(len(data))
	return nil
}

func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	if err := d.enter("read", ""); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if err := d.checker().Transfer("read", b, offset, n); err != nil {
		return nil, err
	}
	d.counts.Reads++
	d.counts.BytesRead += n
	return pending{d, "read", make([]byte, n), d.idle}, nil
}

func (p pending) Wait() ([]byte, error) {
	if p.d.lost() {
		return nil, p.d.fail(p.op, "", device.ErrLost)
	}
	if err := p.d.wait(p.op, p.at); err != nil {
		return nil, err
	}
	return p.data, nil
}

// lost tells whether all operations that it does are done.
func (d *Device) lost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left == 0 && !d.closed
}

func (d *Device) Sync() error {
	if err := d.enter("sync", ""); err != nil {
		return err
	}
	at := d.idle
	d.mu.Unlock()
	return d.wait("sync", at)
}

// wait sleeps until a moment, or until the device is closed.
func (d *Device) wait(op string, at time.Time) error {
	left := time.Until(at)
	if at.IsZero() || left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-d.ended:
		return d.fail(op, "", device.ErrClosed)
	}
}

func (d *Device) Allocated() (buffers, staging int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used, 0
}

// Close does not wait: reads that are under way fail.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		close(d.ended)
	}
	for b := range d.imported {
		d.free(b)
	}
	d.closed, d.used = true, 0
	return nil
}
