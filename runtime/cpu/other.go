//go:build !(linux && cgo)

package cpu

import (
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

var errSystem = errors.New("native code on CPUs is for Linux, and needs a program that was built with cgo")

// Adapters returns why there is no such device.
func Adapters() ([]device.Info, error) { return nil, errSystem }

// Open fails on this system.
func Open(Options) (device.Device, error) { return nil, errSystem }
