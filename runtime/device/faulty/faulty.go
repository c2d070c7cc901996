// Package faulty wraps a device so that tests of its users can make any operation fail or hang.
package faulty

import "github.com/gpupipe/gpupipe/runtime/device"

// Op is an operation of a device.
type Op string

const (
	Alloc    Op = "alloc"
	Load     Op = "load"
	Run      Op = "run"
	Write    Op = "write"
	Read     Op = "read"     // the call that enqueues it
	Transfer Op = "transfer" // the call that enqueues it; its object is "FROM to TO"
	Wait     Op = "wait"     // for a read or a transfer
	Import   Op = "import"
	Sync     Op = "sync"
)

// Device calls Before ahead of each operation, with the label of its buffer or program. An error of Before is the
// operation's error, and while Before does not return, the operation hangs.
type Device struct {
	device.Device
	Before func(op Op, object string) error
}

func (d *Device) fail(op Op, object string) error {
	err := d.Before(op, object)
	if err == nil {
		return nil
	}
	return d.error(op, object, err)
}

func (d *Device) error(op Op, object string, err error) error {
	return &device.Error{Op: string(op), Object: object, Device: d.Info().Name, Cause: err}
}

func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	if err := d.fail(Alloc, label); err != nil {
		return nil, err
	}
	return d.Device.Alloc(label, size)
}

type loaded struct {
	device.Loaded
	label string
}

func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	if err := d.fail(Load, p.Label); err != nil {
		return nil, err
	}
	l, err := d.Device.Load(p)
	if err != nil {
		return nil, err
	}
	return loaded{l, p.Label}, nil
}

func (d *Device) Run(l device.Loaded) error {
	x := l.(loaded)
	if err := d.fail(Run, x.label); err != nil {
		return err
	}
	return d.Device.Run(x.Loaded)
}

// RunTimed counts as a Run.
func (d *Device) RunTimed(l device.Loaded) (device.Timings, error) {
	x := l.(loaded)
	timer, ok := d.Device.(device.Timer)
	if !ok {
		return nil, d.error(Run, x.label, device.ErrNoTimestamps)
	}
	if err := d.fail(Run, x.label); err != nil {
		return nil, err
	}
	return timer.RunTimed(x.Loaded)
}

func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	if err := d.fail(Write, b.Label()); err != nil {
		return err
	}
	return d.Device.Write(b, offset, data)
}

type pending struct {
	device.Pending
	d     *Device
	label string
}

func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	if err := d.fail(Read, b.Label()); err != nil {
		return nil, err
	}
	p, err := d.Device.Read(b, offset, n)
	if err != nil {
		return nil, err
	}
	return pending{p, d, b.Label()}, nil
}

func (p pending) Wait() ([]byte, error) {
	if err := p.d.fail(Wait, p.label); err != nil {
		return nil, err
	}
	return p.Pending.Wait()
}

func (d *Device) Sync() error {
	if err := d.fail(Sync, ""); err != nil {
		return err
	}
	return d.Device.Sync()
}
