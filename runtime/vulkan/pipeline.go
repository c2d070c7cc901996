//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	encoding "encoding/binary"
	"fmt"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	vk "github.com/vulkan-go/vulkan"
)

type pipelineKey struct {
	base.Key
	trusted bool
}

// kernels compiles shaders, and keeps the compiled ones. The device's lock guards it.
type kernels struct {
	d         *Device
	features  spirv.Features
	dir       string // of compiled shaders; "" keeps none
	compiler  *spirv.Compiler
	cache     pipelineCache
	pipelines map[pipelineKey]*pipeline
	layouts   map[int]layout // by the number of bindings
}

func newKernels(d *Device, dir string) kernels {
	k := kernels{d: d, dir: dir, features: d.adapter.matrixFeatures(), pipelines: map[pipelineKey]*pipeline{}, layouts: map[int]layout{}}
	if !d.adapter.robustness {
		k.features |= spirv.CheckBuffers
	}
	if d.adapter.zeros {
		k.features |= spirv.ZeroWorkgroup
	}
	return k
}

// free frees everything. The queue must be idle.
func (k *kernels) free() {
	for _, p := range k.pipelines {
		C.gv_free_pipeline(k.d.handle, p.handle)
	}
	for _, l := range k.layouts {
		C.gv_free_layout(k.d.handle, l.set, l.pipeline)
	}
	k.cache.free(k.d)
}

// pipeline is a compiled shader.
type pipeline struct {
	handle C.uint64_t
	layout layout
	use    []use // of each binding
}

// use is what a shader does with a binding, whatever access it declares.
type use uint8

const (
	unused use = iota
	read
	written
)

// layout is the layout of n storage buffers, shared by all shaders with n bindings.
type layout struct{ set, pipeline C.uint64_t }

// compile returns the pipeline of a source, which it makes once.
func (k *kernels) compile(s *device.Shader) (*pipeline, error) {
	key := pipelineKey{base.KeyOf(s), k.trusts(s)}
	if p := k.pipelines[key]; p != nil {
		return p, nil
	}
	m, err := k.translate(s)
	if err != nil {
		return nil, device.Invalid("%v", err)
	}
	if err := k.d.owner.Dump("", s, device.FormatSPIRV, binary(m.Code)); err != nil {
		return nil, err
	}
	p := &pipeline{use: make([]use, len(s.Bindings))}
	if err := k.fits(m, s, p.use); err != nil {
		return nil, err
	}
	if p.layout, err = k.layout(len(s.Bindings)); err != nil {
		return nil, err
	}
	if p.handle, err = k.cache.pipeline(k, m, p.layout, key.trusted); err != nil {
		return nil, err
	}
	k.pipelines[key] = p
	return p, nil
}

// trusts reports whether a kernel's indices are left unchecked. On CPUs checks cost little, and code without them takes
// longer to compile.
func (k *kernels) trusts(s *device.Shader) bool {
	return s.Inside && k.d.Info().Kind != device.Software
}

func (k *kernels) translate(s *device.Shader) (*spirv.Module, error) {
	features := k.features
	if k.trusts(s) {
		features = features&^spirv.CheckBuffers | spirv.TrustIndices
	}
	if s.Assembly() {
		return spirv.Assemble(s.Source, features)
	}
	return k.compiler.Compile(s.Source, features)
}

// binary returns SPIR-V as it is stored in files.
func binary(code []uint32) []byte {
	b := make([]byte, 0, 4*len(code))
	for _, word := range code {
		b = encoding.LittleEndian.AppendUint32(b, word)
	}
	return b
}

// fits compares what a module declares with the program, because Vulkan does not. It sets the uses of the bindings.
func (k *kernels) fits(m *spirv.Module, s *device.Shader, uses []use) error {
	if m.Workgroup != s.Workgroup {
		return device.Invalid("the source declares workgroup %v, the program %v", m.Workgroup, s.Workgroup)
	}
	if m.WorkgroupMemory > int64(k.d.Limits().MaxWorkgroupMemory) {
		return device.Invalid("the source declares %d bytes of workgroup memory, the device has %d", m.WorkgroupMemory,
			k.d.Limits().MaxWorkgroupMemory)
	}
	for i, b := range m.Bindings {
		if int(i) >= len(s.Bindings) {
			return device.Invalid("the source has a binding %d, the program %d bindings", i, len(s.Bindings))
		}
		if b.ReadOnly != (s.Bindings[i] == device.ReadOnly) {
			return device.Invalid("the source declares binding %d %s, the program %s", i, accessName(b.ReadOnly), accessName(!b.ReadOnly))
		}
		uses[i] = read
		if b.Written {
			uses[i] = written
		}
	}
	return nil
}

func accessName(readOnly bool) string {
	if readOnly {
		return "read"
	}
	return "read_write"
}

// layout returns the layout of n storage buffers, which it makes once.
func (k *kernels) layout(n int) (layout, error) {
	if l, made := k.layouts[n]; made {
		return l, nil
	}
	var l layout
	if err := failure(vk.Result(C.gv_new_layout(k.d.handle, C.uint32_t(n), &l.set, &l.pipeline))); err != nil {
		return layout{}, err
	}
	k.layouts[n] = l
	return l, nil
}

// newPipeline compiles a module by the driver. The indices of a trusted kernel are not checked.
func (k *kernels) newPipeline(m *spirv.Module, of layout, trusted bool, cache vk.PipelineCache) (p C.uint64_t, err error) {
	r := C.gv_new_pipeline(k.d.handle, C.uint64_t(uintptr(unsafe.Pointer(cache))), of.pipeline, (*C.uint32_t)(&m.Code[0]),
		C.size_t(4*len(m.Code)), k.d.adapter.subgroup(m), flag(trusted && k.d.adapter.trusts), &p)
	if err := failure(vk.Result(r)); err != nil {
		return 0, fmt.Errorf("the driver could not compile it: %w", err)
	}
	return p, nil
}
