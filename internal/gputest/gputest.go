// Package gputest opens this machine's devices for tests.
package gputest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// Open opens the CPU or the first adapter of Vulkan, if the name is that of one, and else WebGPU's first adapter.
func Open(name string) (device.Device, error) {
	n, err := device.ParseName(name)
	if err != nil {
		return nil, err
	}
	switch n.Backend {
	case device.CPUBackend:
		return cpu.Open(cpu.Options{Threads: n.Threads, CacheDir: cache("cpu")})
	case "vulkan":
		return vulkan.Open(0, vulkan.Options{CacheDir: cache("vulkan")})
	}
	return webgpu.Open(0, webgpu.Options{})
}

// Backends lists the names of the CPU and of the first adapters on this system. The first two are for Linux only.
func Backends() []string {
	if runtime.GOOS == "linux" {
		return []string{"cpu:0", "vulkan:0", "webgpu:0"}
	}
	return []string{"webgpu:0"}
}

// caches is the folder of what the tests of a process share: kernels of the CPU, and Vulkan's shader translator.
func caches() string {
	return filepath.Join(os.TempDir(), fmt.Sprint("gpupipe-gputest-", os.Getpid()))
}

func cache(backend string) string { return filepath.Join(caches(), backend) }

// Main runs the tests and removes their caches. The TestMain of a package that opens devices here calls it.
func Main(m *testing.M) (code int) {
	defer os.RemoveAll(caches())
	return m.Run()
}
