package train

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// cancelPending calls cancel if ctx ends before the first step on the devices is done. Until then, most of the time
// goes into compiling kernels, with some drivers when a kernel runs for the first time. That can take minutes, and
// there is nothing to save.
func (d *deployment) cancelPending(ctx context.Context, cancel func()) {
	d.cancels = append(d.cancels, context.AfterFunc(ctx, cancel))
}

// cancelDevices cancels by closing the devices.
func (d *deployment) cancelDevices(ctx context.Context) {
	devices := d.devices
	d.cancels = nil // of devices that are closed already
	d.cancelPending(ctx, func() {
		kill(devices)
		_ = closeDevices(devices) // the engine returns the error
	})
}

// cancelEngine cancels by aborting the work in flight.
func (d *deployment) cancelEngine(ctx context.Context) {
	e := d.engine
	d.cancelPending(ctx, func() { e.Abort(device.ErrClosed) })
}

// settle ends cancelPending, once there is something to save. It returns device.ErrClosed if the devices are closed.
func (d *deployment) settle() error {
	for len(d.cancels) > 0 {
		if !d.cancels[0]() {
			return device.ErrClosed
		}
		d.cancels = d.cancels[1:]
	}
	return nil
}

// canceled reports whether an error comes from devices that cancelPending closed, or from a call that noticed the end
// of ctx first. Nothing was left to save then.
func (d *deployment) canceled(ctx context.Context, err error) bool {
	closed := len(d.cancels) > 0 && (errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrLost))
	return ctx.Err() != nil && (closed || errors.Is(err, ctx.Err()))
}
