//go:build !unix

package sidecar

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// Device is not for this system.
type Device struct{ device.Device }

var errSystem = fmt.Errorf("a worker process needs Unix sockets that pass files, which gpupipe does not use on %s: leave out isolation there",
	runtime.GOOS)

// Open fails: this system has not what it takes.
func Open(Options) (*Device, error) { return nil, errSystem }

// Process is that of the worker.
func (d *Device) Process() *os.Process { return nil }

// Serve fails: this system has not what it takes.
func Serve(context.Context, string, string, func(string) (device.Device, error)) error {
	return errSystem
}

// Work fails: this system has not what it takes.
func Work(context.Context, io.Reader, string, func(string) (device.Device, error)) error {
	return errSystem
}
