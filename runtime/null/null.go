// Package null is a device that executes nothing: it counts its calls and bytes, and refuses every breach of WebGPU's
// default limits, or of the limits that it is opened with. Buffers have no contents, so reads return zeros. Programs
// may be given durations, so that schedules can be measured without hardware.
package null

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

// Options of a null device.
type Options struct {
	Name         string         // "null:0" when empty
	Limits       *target.Limits // WebGPU's default limits when nil
	MemoryBudget int64          // bytes; 0: no budget
	Dump         device.Dump    // receives the kernels that are loaded; nil: they are not dumped
	// Latency returns how long a run of the program of that label occupies the in-order queue; nil: no time. Run calls
	// it. What is enqueued later, and reads, wait for it.
	Latency func(program string) time.Duration
	// LoseAfter is how many operations the device does before it is lost: later operations, and reads in progress,
	// return device.ErrLost. 0: the device is never lost.
	LoseAfter int
	// ImportAlignment is the alignment in bytes of the memory that the device imports; 0: it imports none.
	ImportAlignment int64
}

// Counts are the operations of a device so far.
type Counts struct {
	Programs, Dispatches, Copies, Reads, Writes, Transfers int64
	BytesCopied, BytesRead, BytesWritten, BytesTransferred int64
}

// Device implements device.Device, device.Timer and device.Importer.
type Device struct {
	base.Properties
	alignment int64 // of imported memory, in bytes
	latency   func(program string) time.Duration
	closed    chan struct{} // closed by Close

	mu     sync.Mutex
	owner  *base.Owner[*buffer, *loaded]
	left   int // operations before the device is lost; 0: no bound
	counts Counts
	idle   time.Time // when the queue will be empty: all that there is of a queue
}

type buffer struct {
	base.Buffer
	d      *Device
	memory []byte // of the host, if imported
	freed  func()
}

type loaded struct {
	base.Program
	d      *Device
	counts Counts // of one run
}

// pending is a read of zeros that completes when all work enqueued before it is done.
type pending struct {
	d    *Device
	op   string
	data []byte
	at   time.Time
}

// New returns a null device.
func New(o Options) *Device {
	limits := target.DefaultLimits()
	if o.Limits != nil {
		limits = *o.Limits
	}
	d := &Device{alignment: o.ImportAlignment, latency: o.Latency, closed: make(chan struct{}), left: o.LoseAfter}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	d.owner.Describe(device.Info{Name: cmp.Or(o.Name, "null:0"), Adapter: "none", Kind: device.Null}, limits, o.MemoryBudget)
	d.owner.SetDump(o.Dump)
	return d
}

// Counts returns the operations so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// do runs an operation, after which the device may be lost.
func (d *Device) do(op, object string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	usable := d.owner.Usable() == nil
	err := d.owner.Do(op, object, f)
	if usable && d.left > 0 {
		if d.left--; d.left == 0 {
			d.owner.Lose(device.ErrLost)
		}
	}
	return err
}

func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	return d.owner.Alloc(d.do, b, func() error { return nil })
}

func (b *buffer) Release() {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.d.owner.Release(b) {
		b.free()
	}
}

func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{Program: d.owner.NewProgram(p), d: d}
	return d.owner.Load(d.do, l, p, func() error {
		l.counts = countsOf(p)
		return nil
	})
}

// countsOf returns the counts of one run of a program.
func countsOf(p *device.Program) Counts {
	n := Counts{Programs: 1}
	for _, c := range p.Commands {
		if c.Shader == device.Copy {
			n.Copies++
			n.BytesCopied += c.Args[0].Size
		} else {
			n.Dispatches++
		}
	}
	return n
}

func (l *loaded) Release() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.owner.Unload(l)
}

func (d *Device) Run(p device.Loaded) error {
	return d.owner.Run(d.do, p, func(l *loaded) error {
		d.counts.Programs++
		d.counts.Dispatches += l.counts.Dispatches
		d.counts.Copies += l.counts.Copies
		d.counts.BytesCopied += l.counts.BytesCopied
		if d.latency != nil {
			if now := time.Now(); d.idle.Before(now) {
				d.idle = now
			}
			d.idle = d.idle.Add(d.latency(l.Label()))
		}
		return nil
	})
}

func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.do("write", base.Label(b), func() error {
		if err := d.owner.Checker().Transfer("write", b, offset, int64(len(data))); err != nil {
			return err
		}
		d.counts.Writes++
		d.counts.BytesWritten += int64(len(data))
		return nil
	})
}

func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	r := &pending{d: d, op: "read"}
	return d.owner.Read(d.do, b, offset, n, r, func(*buffer) error {
		d.counts.Reads++
		d.counts.BytesRead += n
		r.data, r.at = make([]byte, n), d.idle
		return nil
	})
}

func (p pending) Wait() ([]byte, error) {
	if p.d.lost() {
		return nil, p.d.owner.Named(p.op, "", device.ErrLost)
	}
	if err := p.d.wait(p.op, p.at); err != nil {
		return nil, err
	}
	return p.data, nil
}

func (d *Device) lost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Is(d.owner.Usable(), device.ErrLost)
}

func (d *Device) Sync() error {
	var at time.Time
	err := d.do("sync", "", func() error {
		at = d.idle
		return nil
	})
	if err != nil {
		return err
	}
	return d.wait("sync", at)
}

// wait sleeps until a moment, or until the device is closed.
func (d *Device) wait(op string, at time.Time) error {
	if at.IsZero() || !time.Now().Before(at) || sleep.For(time.Until(at), d.closed) {
		return nil
	}
	return d.owner.Named(op, "", device.ErrClosed)
}

// Close does not wait: reads in progress fail.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owner.Close() {
		close(d.closed)
		d.owner.FreeAll(func(*loaded) {}, (*buffer).free)
	}
	return nil
}
