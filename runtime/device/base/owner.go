package base

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

var (
	errForeign  = errors.New("does not belong to this device")
	errReleased = errors.New("is released")
)

// Owner keeps the buffers of type B and the programs of type P that belong to a device, and whether the device can be
// used. The backend calls it under the lock of its device, but Load, Run, Write, Read and Transfer, which take that
// lock by Do; Named and Leave are safe for concurrent use.
type Owner[B ownedBuffer, P ownedProgram] struct {
	properties *Properties
	closed     bool
	lost       error
	leaving    atomic.Bool // Close was called
	dump       device.Dump // or nil
	buffers    map[B]struct{}
	programs   map[P]struct{}
}

// NewOwner returns the owner of an open device.
func NewOwner[B ownedBuffer, P ownedProgram](p *Properties) *Owner[B, P] {
	return &Owner[B, P]{properties: p, buffers: map[B]struct{}{}, programs: map[P]struct{}{}}
}

// Describe sets what the device reports about itself, before it is used. budget is the bytes that buffers may take; 0:
// no bound.
func (o *Owner[B, P]) Describe(info device.Info, limits target.Limits, budget int64) {
	o.properties.info, o.properties.limits, o.properties.budget = info, limits, budget
}

// AddStaging counts bytes of staging memory that the backend allocated, or freed if negative. It is safe for
// concurrent use.
func (o *Owner[B, P]) AddStaging(bytes int64) { o.properties.staged.Add(bytes) }

// SetDump has the code of all kernels dumped that are loaded from now on; nil: of none.
func (o *Owner[B, P]) SetDump(d device.Dump) { o.dump = d }

// Dump hands code to the dump, if there is one: the source of a shader of a program, or what the backend made of it.
func (o *Owner[B, P]) Dump(program string, s *device.Shader, format device.Format, code []byte) error {
	if o.dump == nil {
		return nil
	}
	err := o.dump(device.Kernel{Device: o.properties.info.Name, Program: program, Shader: s, Format: format, Code: code})
	return o.Named("compile", s.Label, err)
}

// Named returns cause as a *device.Error of this device; see device.Named.
func (o *Owner[B, P]) Named(op, object string, cause error) error {
	return device.Named(op, object, o.properties.info.Name, cause)
}

// Do runs f if the device can be used, and names its error. Once the device is lost, every error is the loss.
func (o *Owner[B, P]) Do(op, object string, f func() error) error {
	err := o.Usable()
	if err == nil {
		err = f()
	}
	if o.lost != nil && !o.closed {
		err = o.lost
	}
	return o.Named(op, object, err)
}

// Usable returns nil, device.ErrClosed, or the cause of the device's loss.
func (o *Owner[B, P]) Usable() error {
	if o.closed {
		return device.ErrClosed
	}
	return o.lost
}

// Lost returns the cause of the device's loss, nil if it is not lost.
func (o *Owner[B, P]) Lost() error { return o.lost }

// Lose marks the device as lost, and reports whether it was not yet. The first cause counts; it wraps device.ErrLost.
func (o *Owner[B, P]) Lose(cause error) bool {
	if o.lost != nil {
		return false
	}
	if !errors.Is(cause, device.ErrLost) {
		cause = fmt.Errorf("%w: %w", device.ErrLost, cause)
	}
	o.lost = cause
	return true
}

// Leave announces Close: a Load in progress stops before its next kernel.
func (o *Owner[B, P]) Leave() { o.leaving.Store(true) }

// Close marks the device as closed, and reports whether it was not yet. No memory counts as allocated from then on.
func (o *Owner[B, P]) Close() bool {
	if o.closed {
		return false
	}
	o.closed = true
	o.properties.buffers.Store(0)
	o.properties.staged.Store(0)
	return true
}

// FreeAll releases all programs and then all buffers, and calls the functions for them.
func (o *Owner[B, P]) FreeAll(program func(P), buffer func(B)) {
	for p := range o.programs {
		o.Unload(p)
		program(p)
	}
	for b := range o.buffers {
		o.Release(b)
		buffer(b)
	}
}

// Checker returns the checks that come before any use of the backend's API.
func (o *Owner[B, P]) Checker() device.Checker {
	return device.Checker{Device: o.properties.info.Name, Limits: o.properties.limits, Own: o.owns}
}

func (o *Owner[B, P]) owns(b device.Buffer) error {
	var none B
	ours, ok := b.(B)
	switch {
	case !ok || ours == none || ours.buffer().owner != any(o):
		return errForeign
	case ours.buffer().released:
		return errReleased
	}
	return nil
}
