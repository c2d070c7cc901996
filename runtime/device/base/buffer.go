package base

import "github.com/gpupipe/gpupipe/runtime/device"

// Buffer is embedded by a backend's buffers.
type Buffer struct {
	owner    any // an *Owner
	label    string
	size     int64
	imported bool
	released bool // under the device's lock
}

type ownedBuffer interface {
	comparable
	device.Buffer
	buffer() *Buffer
}

// NewBuffer returns the base of a buffer of this device, to be passed to Alloc or Import.
func (o *Owner[B, P]) NewBuffer(label string, size int64) Buffer {
	return Buffer{owner: o, label: label, size: size}
}

func (b *Buffer) buffer() *Buffer { return b }

// Label returns the name that Alloc was given.
func (b *Buffer) Label() string { return b.label }

// Size returns the size in bytes.
func (b *Buffer) Size() int64 { return b.size }

// Imported reports whether the buffer lies in memory of the host.
func (b *Buffer) Imported() bool { return b.imported }

// Alloc has do check the size of b against the limits and the memory budget, call create, and take b in.
func (o *Owner[B, P]) Alloc(do Do, b B, create func() error) (device.Buffer, error) {
	p, x := o.properties, b.buffer()
	return o.take(do, "alloc", b, func() error {
		if err := o.Checker().Alloc(x.label, x.size, p.buffers.Load(), p.budget); err != nil {
			return err
		}
		err := create()
		if err == nil {
			p.buffers.Add(x.size)
		}
		return err
	})
}

// Import has do check the memory of b, call create, and take b in. It does not count as allocated.
func (o *Owner[B, P]) Import(do Do, b B, memory []byte, alignment int64, create func() error) (device.Buffer, error) {
	return o.take(do, "import", b, func() error {
		if err := o.Checker().Import(b.Label(), memory, alignment); err != nil {
			return err
		}
		b.buffer().imported = true
		return create()
	})
}

// take takes a buffer in, once it is made.
func (o *Owner[B, P]) take(do Do, operation string, b B, make func() error) (device.Buffer, error) {
	err := do(operation, b.Label(), func() error {
		err := make()
		if err == nil {
			o.buffers[b] = struct{}{}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Release takes b out, and reports whether it had not been released before.
func (o *Owner[B, P]) Release(b B) bool {
	x := b.buffer()
	if x.released {
		return false
	}
	x.released = true
	if _, held := o.buffers[b]; held && !x.imported && !o.closed {
		o.properties.buffers.Add(-x.size)
	}
	delete(o.buffers, b)
	return true
}

// ReleaseWith has do call Release, and free unless b is released already. After Close or a loss nothing is left to
// release.
func (o *Owner[B, P]) ReleaseWith(do Do, b B, free func()) {
	_ = do("release", b.Label(), func() error {
		if o.Release(b) {
			free()
		}
		return nil
	})
}
