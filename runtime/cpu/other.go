//go:build !(linux && cgo)

package cpu

import (
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Toolchain is none on this system.
type Toolchain struct{}

// FindToolchain returns why there is no such device.
func FindToolchain(string) (*Toolchain, error) { return nil, ErrSystem }

// Adapter describes no device.
func (*Toolchain) Adapter() device.Info { return device.Info{} }

// Limits returns empty limits.
func (*Toolchain) Limits() target.Limits { return target.Limits{} }

// MakeCache fails on this system.
func MakeCache(string) error { return ErrSystem }

// Open fails on this system.
func Open(Options) (device.Device, error) { return nil, ErrSystem }
