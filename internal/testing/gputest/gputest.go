// Package gputest opens this machine's devices for tests.
//
// Which device a test uses:
//
//   - Logic (engine, optimizers, planning, tuning, profiles, hooks, commands) runs on testdevice.Device, the CPU's
//     native code.
//   - What each backend must do runs on all of Backends: the conformance suite of runtime/devicetest/compute, the rules
//     of runtime/devicetest/contract, a golden run, worker processes that are lost, and in pipeline/runs/verify one
//     case of each invariant of the pipeline. The adapters divide golden runs of other models; hooks train on one.
//   - Parity between backends: goldentest trains pipelines of two backends, and pipeline/runs/verify compares kinds.
//   - Kernels for GPUs and for software adapters (runtime/devicetest/compute, shaders/matmul) run on
//     testdevice.Translated, which has them as C, because drivers of software adapters take minutes to compile them. A
//     small case of each kind of kernel runs on an adapter, too.
package gputest

import (
	"runtime"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// Open opens the device of tests of logic, or the first adapter of Vulkan or WebGPU, whichever the name says. A name
// without a backend, such as "" or "/1", is of the former.
func Open(name string) (device.Device, error) {
	n, err := device.ParseName(name)
	if err != nil {
		return nil, err
	}
	switch n.Backend {
	case "vulkan":
		dir, err := testdevice.Cache("vulkan")
		if err != nil {
			return nil, err
		}
		return vulkan.Open(0, vulkan.Options{CacheDir: dir})
	case "webgpu":
		return webgpu.Open(0, webgpu.Options{})
	}
	return testdevice.Open(name)
}

// Backends lists the names of testdevice and of the first adapters on this system. Vulkan is for Linux only.
func Backends() []string {
	if runtime.GOOS == "linux" {
		return []string{testdevice.Name, "vulkan:0", "webgpu:0"}
	}
	return []string{testdevice.Name}
}
