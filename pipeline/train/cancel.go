package train

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// cancelPending calls cancel if ctx ends before the first step on the devices is done. Until then, most of the time
// goes into compiling kernels, with some drivers when a kernel runs for the first time. That can take minutes, and
// there is nothing to save.
func (s *session) cancelPending(ctx context.Context, cancel func()) {
	s.cancels = append(s.cancels, context.AfterFunc(ctx, cancel))
}

// cancelDevices cancels by closing the devices.
func (s *session) cancelDevices(ctx context.Context) {
	devices := s.devices
	s.cancels = nil // of devices that are closed already
	s.cancelPending(ctx, func() {
		kill(devices)
		_ = closeDevices(devices) // the engine returns the error
	})
}

// cancelEngine cancels by aborting the work in flight.
func (s *session) cancelEngine(ctx context.Context) {
	e := s.engine
	s.cancelPending(ctx, func() { e.Abort(device.ErrClosed) })
}

// settle ends cancelPending, once there is something to save. It returns device.ErrClosed if the devices are closed.
func (s *session) settle() error {
	for len(s.cancels) > 0 {
		if !s.cancels[0]() {
			return device.ErrClosed
		}
		s.cancels = s.cancels[1:]
	}
	return nil
}

// canceled reports whether an error comes from devices that cancelPending closed, or from a call that noticed the end
// of ctx first. Nothing was left to save then.
func (s *session) canceled(ctx context.Context, err error) bool {
	closed := len(s.cancels) > 0 && (errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrLost))
	return ctx.Err() != nil && (closed || errors.Is(err, ctx.Err()))
}
