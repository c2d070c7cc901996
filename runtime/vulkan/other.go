//go:build !linux

package vulkan

import (
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// Adapters lists none: elsewhere WebGPU is the way to the GPU.
func Adapters() ([]Adapter, error) { return nil, nil }

// Open opens none.
func Open(int, Options) (device.Device, error) {
	return nil, errors.New("Vulkan is used directly on Linux only: choose webgpu:N")
}
