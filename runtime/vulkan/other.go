//go:build !linux

package vulkan

import (
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// Adapters returns an empty list: on this system GPUs are used through WebGPU.
func Adapters() ([]Adapter, error) { return nil, nil }

// Open fails on this system.
func Open(int, Options) (device.Device, error) {
	return nil, errors.New("Vulkan is used directly on Linux only: choose webgpu:N")
}
