//go:build !linux

package testdevice

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// Name is the device's.
const Name = "webgpu:0"

// Open opens the device, whatever the name.
func Open(string) (device.Device, error) { return webgpu.Open(0, webgpu.Options{}) }

func openTranslated(string) (device.Device, error) { return Open(Name) }

// Quick is Device.
func Quick(t testing.TB) device.Device { return Device(t) }
