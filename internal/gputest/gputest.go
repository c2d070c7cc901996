// Package gputest opens this machine's first adapter for tests.
package gputest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// Open opens the first adapter, through Vulkan if the name begins with it and through WebGPU otherwise.
func Open(name string) (device.Device, error) {
	if strings.HasPrefix(name, "vulkan") {
		return vulkan.Open(0, vulkan.Options{CacheDir: shaderCache()})
	}
	return webgpu.Open(0, webgpu.Options{})
}

// Backends lists the names of the first adapter on this system. Vulkan is used directly on Linux only.
func Backends() []string {
	if runtime.GOOS == "linux" {
		return []string{"webgpu:0", "vulkan:0"}
	}
	return []string{"webgpu:0"}
}

// shaderCache is the folder that the tests of a process share, so that Vulkan's shader translator is compiled once.
func shaderCache() string {
	return filepath.Join(os.TempDir(), fmt.Sprint("gpupipe-gputest-", os.Getpid()))
}

// Main runs the tests and removes the shader cache. The TestMain of a package that opens devices through Vulkan calls
// it.
func Main(m *testing.M) (code int) {
	defer os.RemoveAll(shaderCache())
	return m.Run()
}
