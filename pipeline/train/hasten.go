package train

import (
	"context"
	"errors"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// hasten has something done when ctx ends before the first step on the devices is done. Most of the time until then goes into kernels that
// compile, some drivers' when they first run, which may be minutes; and there is nothing to save.
func (r *run) hasten(ctx context.Context, then func()) {
	r.unhook = append(r.unhook, context.AfterFunc(ctx, then))
}

// hastenDevices has the devices closed.
func (r *run) hastenDevices(ctx context.Context) {
	devices := r.devices
	r.unhook = nil // those of devices before these are closed
	r.hasten(ctx, func() {
		kill(devices)
		_ = endAll(devices) // whoever works on them is told
	})
}

// hastenEngine has what the devices are at forgotten.
func (r *run) hastenEngine(ctx context.Context) {
	e := r.engine
	r.hasten(ctx, func() { e.Abort(device.ErrClosed) })
}

// settled is called when there is something to save. Its error is that the devices are closed already.
func (r *run) settled() error {
	for len(r.unhook) > 0 {
		if !r.unhook[0]() {
			return device.ErrClosed
		}
		r.unhook = r.unhook[1:]
	}
	return nil
}

// hastened tells whether an error is that of devices that hasten closed, or of who noticed the end of ctx first.
func (r *run) hastened(ctx context.Context, err error) bool {
	return len(r.unhook) > 0 && ctx.Err() != nil &&
		(errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrLost) || errors.Is(err, ctx.Err()))
}

// leave ends a run that was interrupted before a step was done, at what it began with.
func (r *run) leave(ctx context.Context) error {
	r.left = true
	return r.interrupted(ctx)
}

// interrupted ends a run at what is kept. One that has not begun leaves nothing that could be gone on with.
func (r *run) interrupted(ctx context.Context) error {
	if r.saved < 0 && !r.folder.begun {
		return ctx.Err()
	}
	r.result.Interrupted, r.step = true, max(r.saved, 0)
	return nil
}

// endSoon closes everything and does not wait for devices that compile: they come to their end later, or with the process.
func (r *run) endSoon() error {
	closed := make(chan error, 1)
	go func() { closed <- r.close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(time.Second):
		r.folder.leave()
		return nil
	}
}
