//go:build !(linux && cgo)

package cpu

import (
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Adapters returns why there is no such device.
func Adapters(string) ([]device.Info, error) { return nil, ErrSystem }

// AdapterLimits returns the limits of no device.
func AdapterLimits(string) target.Limits { return target.Limits{} }

// MakeCache fails on this system.
func MakeCache(string) error { return ErrSystem }

// Open fails on this system.
func Open(Options) (device.Device, error) { return nil, ErrSystem }
