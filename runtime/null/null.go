// Package null is a device that executes nothing. It counts what it is told, and refuses every breach of WebGPU's
// default limits, or of the limits given. It holds no contents: reads give zeros.
package null

import (
	"errors"
	"sync"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options of a null device.
type Options struct {
	Name         string         // "null:0" when empty
	Limits       *device.Limits // WebGPU's default limits when nil
	MemoryBudget int64          // bytes; 0: no budget
}

// Counts is what a device has been told so far.
type Counts struct {
	Programs, Dispatches, Copies, Reads, Writes int64
	BytesCopied, BytesRead, BytesWritten        int64
}

// Device implements device.Device.
type Device struct {
	name   string
	limits device.Limits
	budget int64

	mu     sync.Mutex
	closed bool
	used   int64
	counts Counts
}

type buffer struct {
	d        *Device
	label    string
	size     int64
	released bool // under d.mu
}

type loaded struct {
	d        *Device
	label    string
	counts   Counts // of one run
	buffers  []device.Buffer
	released bool // under d.mu
}

type pending struct{ data []byte }

// New makes a null device.
func New(o Options) *Device {
	d := &Device{name: o.Name, limits: device.DefaultLimits(), budget: o.MemoryBudget}
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

func (d *Device) Limits() device.Limits { return d.limits }

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

// enter locks the device, unless it is closed.
func (d *Device) enter(op, object string) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return d.fail(op, object, device.ErrClosed)
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
	if !b.released && !b.d.closed {
		b.d.used -= b.size
	}
	b.released = true
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
	return pending{make([]byte, n)}, nil
}

func (p pending) Wait() ([]byte, error) { return p.data, nil }

func (d *Device) Sync() error {
	if err := d.enter("sync", ""); err != nil {
		return err
	}
	d.mu.Unlock()
	return nil
}

func (d *Device) Allocated() (buffers, staging int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used, 0
}

func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed, d.used = true, 0
	return nil
}
