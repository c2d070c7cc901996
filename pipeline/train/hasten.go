package train

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// hasten has the devices closed when ctx ends before the first step on them is done. Most of the time until then goes into kernels that
// compile, which may be minutes, and there is nothing to save.
func (r *run) hasten(ctx context.Context) {
	devices := r.devices
	r.unhook = context.AfterFunc(ctx, func() {
		kill(devices)
		_ = endAll(devices) // whoever works on them is told
	})
}

// settled is called when there is something to save. Its error is that the devices are closed already.
func (r *run) settled() error {
	if r.unhook == nil || r.unhook() {
		r.unhook = nil
		return nil
	}
	return device.ErrClosed
}

// hastened tells whether an error is that of devices that hasten closed.
func (r *run) hastened(ctx context.Context, err error) bool {
	return r.unhook != nil && ctx.Err() != nil && (errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrLost))
}

// leave ends a run that was interrupted before a step was done, at what it began with.
func (r *run) leave(ctx context.Context) error {
	if r.saved < 0 && !r.folder.begun {
		return ctx.Err()
	}
	r.result.Interrupted, r.step = true, max(r.saved, 0)
	return nil
}
