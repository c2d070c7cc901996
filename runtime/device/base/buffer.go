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

// Alloc checks the size of b against the limits and the memory budget, calls create, and takes b in.
func (o *Owner[B, P]) Alloc(b B, create func() error) error {
	p, x := o.properties, b.buffer()
	if err := o.Checker().Alloc(x.label, x.size, p.buffers.Load(), p.budget); err != nil {
		return err
	}
	if err := create(); err != nil {
		return err
	}
	p.buffers.Add(x.size)
	o.buffers[b] = struct{}{}
	return nil
}

// Import checks the memory of b, calls create, and takes b in. It does not count as allocated.
func (o *Owner[B, P]) Import(b B, memory []byte, alignment int64, create func() error) error {
	if err := o.Checker().Import(b.Label(), memory, alignment); err != nil {
		return err
	}
	if err := create(); err != nil {
		return err
	}
	b.buffer().imported = true
	o.buffers[b] = struct{}{}
	return nil
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
