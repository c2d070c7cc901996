// Package webgpu runs programs on any GPU through WebGPU (wgpu-native: Vulkan, Metal, Direct3D 12).
//
// wgpu-native ends the process where a browser would report an error: when an invalid command buffer is submitted, when
// a buffer that is not mapped is read, or when the driver reports a loss in the middle of a submission. So the package
// checks everything before it calls the library, and keeps the state of every buffer itself. Only a crash of the driver
// still ends the process; package sidecar isolates that.
//
// A goroutine per device owns its native objects. Methods of the device send it requests, and it polls the library
// while work is in progress.
package webgpu

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// OpenGL is omitted: it lists the adapters of Vulkan again, with fewer features.
const backends = wgpu.InstanceBackendVulkan | wgpu.InstanceBackendMetal | wgpu.InstanceBackendDX12

type adapter struct {
	*wgpu.Adapter
	info             device.Info
	vendorID, device uint32
}

// Adapters lists the machine's adapters in the order of their names: discrete GPUs, then integrated, virtual and
// software ones. Without adapters the list is empty.
func Adapters() ([]device.Info, error) {
	instance, found := enumerate()
	infos := make([]device.Info, len(found))
	for i, a := range found {
		infos[i] = a.info
	}
	releaseAll(instance, found, -1)
	return infos, nil
}

// enumerate lists adapters on a new instance, so that devices share nothing.
func enumerate() (*wgpu.Instance, []adapter) {
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		os.Setenv("XDG_RUNTIME_DIR", os.TempDir()) // Mesa complains on stderr without it
	}
	wgpu.SetLogLevel(wgpu.LogLevelOff) // errors come back as values
	instance := newInstance(backends)
	var found []adapter
	for _, a := range instance.EnumerateAdapters(nil) {
		found = append(found, describe(a))
	}
	found = slices.DeleteFunc(found, func(a adapter) bool {
		duplicate := a.info.API == "dx12" && slices.ContainsFunc(found, func(b adapter) bool {
			return b.info.API == "vulkan" && b.vendorID == a.vendorID && b.device == a.device
		})
		if duplicate {
			a.Release()
		}
		return duplicate
	})
	slices.SortStableFunc(found, func(a, b adapter) int { return cmp.Compare(a.info.Kind.Order(), b.info.Kind.Order()) })
	for i := range found {
		found[i].info.Name = fmt.Sprintf("webgpu:%d", i)
	}
	return instance, found
}

func releaseAll(instance *wgpu.Instance, all []adapter, except int) {
	for i, a := range all {
		if i != except {
			a.Release()
		}
	}
	if except < 0 {
		instance.Release()
	}
}

func describe(a *wgpu.Adapter) adapter {
	i := a.GetInfo()
	name, driver := i.Name, strings.TrimSpace(i.VendorName+" "+i.DriverDescription)
	if strings.HasPrefix(name, "0x") { // up to v22.1.0.3: ids in hexadecimal, the name as description, no driver
		name, driver = i.DriverDescription, ""
	}
	return adapter{Adapter: a, vendorID: i.VendorId, device: i.DeviceId, info: device.Info{
		Adapter: name,
		Vendor:  device.Vendor(i.VendorId),
		Driver:  driver,
		API:     apiName(i.BackendType),
		Kind:    kindOf(i.AdapterType, name),
	}}
}

// kindOf distinguishes software from virtual adapters by name, because wgpu-native reports both as a CPU.
func kindOf(t wgpu.AdapterType, name string) device.Kind {
	name = strings.ToLower(name)
	has := func(s string) bool { return strings.Contains(name, s) }
	switch {
	case has("llvmpipe"), has("lavapipe"), has("swiftshader"), has("basic render"):
		return device.Software
	case t == wgpu.AdapterTypeDiscreteGPU:
		return device.Discrete
	case t == wgpu.AdapterTypeIntegratedGPU:
		return device.Integrated
	case t == wgpu.AdapterTypeCPU && !has("virt") && !has("venus"):
		return device.Software
	}
	return device.Virtual
}

func apiName(b wgpu.BackendType) string {
	switch b {
	case wgpu.BackendTypeVulkan:
		return "vulkan"
	case wgpu.BackendTypeMetal:
		return "metal"
	case wgpu.BackendTypeD3D12:
		return "dx12"
	}
	return strings.ToLower(b.String())
}
