//go:build !linux

package testdevice

import (
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// Name is the device's.
const Name = "webgpu:0"

// Open opens the device, whatever the name.
func Open(string) (device.Device, error) { return webgpu.Open(0, webgpu.Options{}) }

func openTranslated() (device.Device, error) { return Open(Name) }
