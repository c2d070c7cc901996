// Package gputest opens this machine's devices for tests.
//
// Which device a test uses:
//
//   - Logic (engine, optimizers, planning, tuning, profiles, hooks, commands) runs on Device, the CPU's native code.
//   - What each backend must do runs on all of Backends: the conformance suite of runtime/devicetest, the rules of
//     runtime/device/checktest, one golden run of each model, training with hooks, worker processes that are lost, and
//     in pipeline/verify one case of each invariant of the pipeline.
//   - Parity between backends: goldentest trains pipelines of two backends, and pipeline/verify compares kinds.
//   - Kernels for GPUs and for software adapters (runtime/devicetest, shaders/matmul) run on Translated, which translates
//     them into C, because drivers of software adapters take minutes to compile them. A small case of each kind of kernel
//     runs on an adapter, too.
package gputest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Open opens the CPU, or the first adapter of Vulkan or WebGPU, whichever the name says. A name without a backend, such as
// "" or "/1", is of Default.
func Open(name string) (device.Device, error) {
	n, err := device.ParseName(name)
	if err != nil {
		return nil, err
	}
	if n.Backend == "" && runtime.GOOS == "linux" {
		n.Backend = device.CPUBackend
	}
	switch n.Backend {
	case device.CPUBackend:
		dir, err := Cache("cpu")
		if err != nil {
			return nil, err
		}
		return cpu.Open(cpu.Options{Index: n.Index, Threads: n.Threads, CacheDir: dir})
	case "vulkan":
		dir, err := Cache("vulkan")
		if err != nil {
			return nil, err
		}
		return vulkan.Open(0, vulkan.Options{CacheDir: dir})
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

// Default is the name of the device for tests of logic: the CPU's native code where there is one.
func Default() string { return Backends()[0] }

// Device opens Default until the test ends.
func Device(t testing.TB) device.Device {
	t.Helper()
	return opened(t, func() (device.Device, error) { return Open(Default()) })
}

// opened opens a device until the test ends.
func opened(t testing.TB, open func() (device.Device, error)) device.Device {
	t.Helper()
	dev, err := open()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev
}

// Translated opens the CPU as a device for kernels in WGSL, which it translates into C, until the test ends. It reports
// itself as a software adapter with the limits that WebGPU guarantees, but more workgroup memory. The compiler optimizes
// little, which changes no bit, because it takes longer than the kernels do. On other systems than Linux it is the first
// adapter.
func Translated(t testing.TB) device.Device {
	t.Helper()
	return opened(t, openTranslated)
}

func openTranslated() (device.Device, error) {
	if runtime.GOOS != "linux" {
		return Open("webgpu:0")
	}
	dir, err := Cache("cpu")
	if err != nil {
		return nil, err
	}
	d, err := cpu.Open(cpu.Options{CacheDir: dir, CFlags: []string{"-O1"}})
	if err != nil {
		return nil, err
	}
	return translated{d}, nil
}

type translated struct{ device.Device }

func (d translated) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Software
	return info
}

func (d translated) Limits() target.Limits {
	l := target.DefaultLimits()
	l.Software = true
	l.MaxWorkgroupMemory = d.Device.Limits().MaxWorkgroupMemory
	return l
}

// Cache returns the folder of a backend's compiled code. It is the commands' own, which all tests share: the name of
// each file is a sum of what the file was compiled from.
func Cache(backend string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "gpupipe", backend), nil
}
