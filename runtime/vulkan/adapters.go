//go:build linux

package vulkan

/*
#include <stdlib.h>
#include "native.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	vk "github.com/vulkan-go/vulkan"
)

// loader is the process's one Vulkan loader, which the bindings keep in global variables.
var loader struct {
	sync.Mutex
	get unsafe.Pointer // vkGetInstanceProcAddr; nil until the loader is open
}

// Errors of a machine without adapters.
var (
	errNoLoader = errors.New("libvulkan.so.1 cannot be opened: install the Vulkan loader (Debian's libvulkan1) and your GPU's driver")
	errNoDriver = errors.New("the Vulkan loader finds no driver: install your GPU's; without a GPU, use cpu:0")
)

// version12 is the first version of Vulkan with timeline semaphores, which are required. version13 is the latest
// version from which anything is used.
var version12, version13 = vk.MakeVersion(1, 2, 0), vk.MakeVersion(1, 3, 0)

// adapter is a physical device.
type adapter struct {
	Adapter
	physical    vk.PhysicalDevice
	family      uint32
	robustness  bool // robustBufferAccess2
	trusts      bool // it can omit the index checks of a single pipeline
	zeros       bool // it fills workgroup memory with zeros
	cooperative C.gv_cooperative
	types       []memoryType
}

type memoryType struct {
	flags vk.MemoryPropertyFlagBits
	heap  uint32
}

// newInstance opens the loader and makes a new instance, so that devices share nothing.
func newInstance() (vk.Instance, error) {
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		os.Setenv("XDG_RUNTIME_DIR", os.TempDir()) // Mesa complains on stderr without it
	}
	loader.Lock()
	defer loader.Unlock()
	if loader.get == nil {
		name := C.CString("libvulkan.so.1")
		defer C.free(unsafe.Pointer(name))
		if loader.get = C.gv_load(name); loader.get == nil {
			return nil, errNoLoader
		}
		vk.SetGetInstanceProcAddr(loader.get)
		if err := vk.Init(); err != nil {
			return nil, err
		}
	}
	app := vk.ApplicationInfo{SType: vk.StructureTypeApplicationInfo, ApiVersion: version13, PApplicationName: "gpupipe\x00",
		PEngineName: "gpupipe\x00"}
	info := vk.InstanceCreateInfo{SType: vk.StructureTypeInstanceCreateInfo, PApplicationInfo: &app}
	defer info.Free()
	var instance vk.Instance
	r := vk.CreateInstance(&info, nil, &instance)
	if r == vk.ErrorIncompatibleDriver {
		return nil, errNoDriver
	}
	if err := failure(r); err != nil { // for a manifest that is not JSON, the loader reports that it is out of memory
		return nil, fmt.Errorf("the Vulkan loader cannot start: %w; a driver's manifest may be damaged: VK_LOADER_DEBUG=error shows which one", err)
	}
	if err := vk.InitInstance(instance); err != nil {
		vk.DestroyInstance(instance, nil)
		return nil, err
	}
	return instance, nil
}

// failure returns the error of a result, nil for success.
func failure(r vk.Result) error {
	switch {
	case r >= vk.Success:
		return nil
	case r == vk.ErrorOutOfDeviceMemory:
		return device.ErrOutOfMemory
	case r == vk.ErrorOutOfHostMemory:
		return fmt.Errorf("%w: the driver's, on the host", device.ErrOutOfMemory)
	case r == vk.ErrorDeviceLost:
		return device.ErrLost
	}
	return errors.New(strings.TrimPrefix(vk.Error(r).Error(), "vulkan error: "))
}

// Adapters lists the machine's GPUs with Vulkan 1.2 or later, in the order of their names: discrete ones, then
// integrated, virtual and software adapters. Without Vulkan the list is empty.
func Adapters() ([]Adapter, error) {
	instance, found, err := enumerate()
	if errors.Is(err, errNoLoader) || errors.Is(err, errNoDriver) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	vk.DestroyInstance(instance, nil)
	out := make([]Adapter, len(found))
	for i, a := range found {
		out[i] = a.Adapter
	}
	return out, nil
}

// enumerate lists adapters on a new instance.
func enumerate() (vk.Instance, []adapter, error) {
	instance, err := newInstance()
	if err != nil {
		return nil, nil, err
	}
	var n uint32
	r := vk.EnumeratePhysicalDevices(instance, &n, nil)
	all := make([]vk.PhysicalDevice, n)
	if r == vk.Success && n > 0 {
		r = vk.EnumeratePhysicalDevices(instance, &n, all)
	}
	if err := failure(r); err != nil {
		vk.DestroyInstance(instance, nil)
		return nil, nil, err
	}
	var found []adapter
	for _, p := range all[:n] {
		if a, ok := describe(instance, p); ok {
			found = append(found, a)
		}
	}
	slices.SortStableFunc(found, func(a, b adapter) int { return cmp.Compare(a.Kind.Order(), b.Kind.Order()) })
	for i := range found {
		found[i].Name = fmt.Sprintf("vulkan:%d", i)
	}
	return instance, found, nil
}

// describe returns the properties of a physical device. ok is false for one that cannot be used.
func describe(instance vk.Instance, p vk.PhysicalDevice) (a adapter, ok bool) {
	var props vk.PhysicalDeviceProperties
	vk.GetPhysicalDeviceProperties(p, &props)
	defer props.Free()
	props.Deref()
	props.Limits.Deref()
	a.physical = p
	family := C.gv_compute_family(loader.get, unsafe.Pointer(instance), unsafe.Pointer(p))
	if family < 0 || props.ApiVersion < version12 {
		return a, false
	}
	a.family = uint32(family)
	has := func(extension string) C.int {
		name := C.CString(extension)
		defer C.free(unsafe.Pointer(name))
		return C.gv_has_extension(loader.get, unsafe.Pointer(instance), unsafe.Pointer(p), name)
	}
	var can C.gv_abilities
	C.gv_abilities_of(loader.get, unsafe.Pointer(instance), unsafe.Pointer(p), C.uint32_t(props.ApiVersion),
		has("VK_EXT_robustness2"), has("VK_EXT_pipeline_robustness"), has("VK_EXT_subgroup_size_control"),
		has("VK_KHR_cooperative_matrix"), &can)
	runtime.KeepAlive(instance)
	if can.timeline == 0 {
		return a, false
	}
	a.robustness, a.trusts, a.zeros = can.robustness2 != 0, can.pipeline_robustness != 0, can.zero_workgroup != 0
	v := vk.Version(props.ApiVersion)
	a.Info = device.Info{
		Adapter: vk.ToString(props.DeviceName[:]), Vendor: device.Vendor(props.VendorID), Kind: kindOf(props.DeviceType),
		// with the version, unlike WebGPU's "vulkan": the kernels differ
		API:    fmt.Sprintf("vulkan %d.%d.%d", v.Major(), v.Minor(), v.Patch()),
		Driver: strings.TrimSpace(C.GoString(&can.driver_name[0]) + " " + C.GoString(&can.driver_info[0])),
	}
	a.Limits = limitsOf(&props.Limits, &can)
	a.Limits.Software = a.Kind == device.Software
	a.Limits.Assembly = props.ApiVersion >= version13 // version 1.3 accepts SPIR-V 1.6
	a.Subgroup = [2]int{int(can.subgroup_min), int(can.subgroup_max)}
	a.Float16 = can.float16 != 0 && can.storage16 != 0
	for _, s := range can.shapes[:can.shape_count] {
		a.Matrices = append(a.Matrices, shapeOf(s))
	}
	a.addCooperative(instance, props.ApiVersion)
	a.memory(p)
	a.imports(instance)
	return a, true
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (a *adapter) memory(p vk.PhysicalDevice) {
	var m vk.PhysicalDeviceMemoryProperties
	vk.GetPhysicalDeviceMemoryProperties(p, &m)
	defer m.Free()
	m.Deref()
	for i := range m.MemoryTypes[:m.MemoryTypeCount] {
		m.MemoryTypes[i].Deref()
		a.types = append(a.types, memoryType{vk.MemoryPropertyFlagBits(m.MemoryTypes[i].PropertyFlags), m.MemoryTypes[i].HeapIndex})
	}
	for i := range m.MemoryHeaps[:m.MemoryHeapCount] {
		m.MemoryHeaps[i].Deref()
		h := m.MemoryHeaps[i]
		a.Heaps = append(a.Heaps, Heap{Bytes: int64(min(uint64(h.Size), math.MaxInt64)),
			Device: vk.MemoryHeapFlagBits(h.Flags)&vk.MemoryHeapDeviceLocalBit != 0})
	}
	for _, t := range a.types {
		h := &a.Heaps[t.heap]
		h.Host = h.Host || t.flags&vk.MemoryPropertyHostVisibleBit != 0
		if s := t.String(); s != "" && !slices.Contains(h.Types, s) {
			h.Types = append(h.Types, s)
		}
	}
}

// String returns the names of VkMemoryPropertyFlagBits.
func (t memoryType) String() string {
	var names []string
	for i, name := range []string{"device_local", "host_visible", "host_coherent", "host_cached", "lazily_allocated", "protected",
		"device_coherent", "device_uncached", "rdma"} {
		if t.flags>>i&1 == 1 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func kindOf(t vk.PhysicalDeviceType) device.Kind {
	switch t {
	case vk.PhysicalDeviceTypeDiscreteGpu:
		return device.Discrete
	case vk.PhysicalDeviceTypeIntegratedGpu:
		return device.Integrated
	case vk.PhysicalDeviceTypeCpu:
		return device.Software
	}
	return device.Virtual
}

// maxBindings is more than any kernel needs. Some drivers report a million.
const maxBindings = 64

func limitsOf(l *vk.PhysicalDeviceLimits, can *C.gv_abilities) target.Limits {
	size := func(n uint64) int64 { return int64(min(n, math.MaxInt64)) &^ 3 }
	out := target.Limits{
		MaxBindings:     int(min(l.MaxPerStageDescriptorStorageBuffers, l.MaxDescriptorSetStorageBuffers, l.MaxPerStageResources, maxBindings)),
		MaxBindingSize:  size(uint64(l.MaxStorageBufferRange)),
		OffsetAlignment: max(int64(l.MinStorageBufferOffsetAlignment), 32), MaxWorkgroupMemory: int(l.MaxComputeSharedMemorySize),
		MaxInvocations: int(l.MaxComputeWorkGroupInvocations),
		MaxDispatchDimension: int(min(l.MaxComputeWorkGroupCount[0], l.MaxComputeWorkGroupCount[1], l.MaxComputeWorkGroupCount[2],
			math.MaxInt32)),
		MaxBufferSize: size(uint64(can.allocation_size)),
	}
	if can.buffer_size != 0 {
		out.MaxBufferSize = min(out.MaxBufferSize, size(uint64(can.buffer_size)))
	}
	for i, n := range l.MaxComputeWorkGroupSize {
		out.MaxWorkgroupSize[i] = int(n)
	}
	return out
}

// components are the names of VkComponentTypeKHR.
var components = map[C.uint32_t]string{0: "f16", 1: "f32", 2: "f64", 3: "i8", 4: "i16", 5: "i32", 6: "i64", 7: "u8", 8: "u16", 9: "u32",
	10: "u64", 1000141000: "bf16", 1000491002: "e4m3", 1000491003: "e5m2"}

func shapeOf(s C.gv_shape) Matrix {
	name := func(c C.uint32_t) string {
		if n, known := components[c]; known {
			return n
		}
		return fmt.Sprint("type ", c)
	}
	scope, known := map[C.uint32_t]string{1: "device", 2: "workgroup", 3: "subgroup", 5: "queue family"}[s.scope]
	if !known {
		scope = fmt.Sprint("scope ", s.scope)
	}
	return Matrix{M: int(s.m), N: int(s.n), K: int(s.k), A: name(s.a), B: name(s.b), C: name(s.c), Result: name(s.result),
		Saturating: s.saturating != 0, Scope: scope}
}
