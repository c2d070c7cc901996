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

// Available reports whether this system has workers.
const Available = false

// Device is not available on this system.
type Device struct{ device.Device }

var errSystem = fmt.Errorf("a worker process needs Unix sockets that pass files, which gpupipe does not use on %s: use no isolation there",
	runtime.GOOS)

// Open fails on this system.
func Open(Options) (*Device, error) { return nil, errSystem }

// Process returns nil.
func (d *Device) Process() *os.Process { return nil }

// Work fails on this system.
func Work(context.Context, io.Reader, string, func(string) (device.Device, error)) error {
	return errSystem
}
