//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	vk "github.com/vulkan-go/vulkan"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders/spirv"
)

type pipelineKey struct{ wgsl, access string }

// pipeline is a compiled shader.
type pipeline struct {
	handle vk.Pipeline
	layout layout
	use    []use // of each binding
}

// use is what a shader does with a binding, whatever it declares.
type use uint8

const (
	unused use = iota
	read
	written
)

func (p *pipeline) id() C.uint64_t { return C.uint64_t(uintptr(unsafe.Pointer(p.handle))) }

// layout is that of n storage buffers, shared by all shaders that have so many.
type layout struct {
	sets     []vk.DescriptorSetLayout // one
	pipeline vk.PipelineLayout
}

func (l layout) id() C.uint64_t { return C.uint64_t(uintptr(unsafe.Pointer(l.pipeline))) }

func (l layout) free(gpu vk.Device) {
	if l.pipeline != nil {
		vk.DestroyPipelineLayout(gpu, l.pipeline, nil)
	}
	for _, s := range l.sets {
		vk.DestroyDescriptorSetLayout(gpu, s, nil)
	}
}

// compile makes a pipeline, or finds the one made before from that source.
func (d *Device) compile(s *device.Shader) (*pipeline, error) {
	key := pipelineKey{s.WGSL, accessKey(s.Bindings)}
	if p := d.pipelines[key]; p != nil {
		return p, nil
	}
	m, err := d.compiler.Compile(s.WGSL, d.features)
	if err != nil {
		return nil, device.Invalid("%v", err)
	}
	p := &pipeline{use: make([]use, len(s.Bindings))}
	if err := d.fits(m, s, p.use); err != nil {
		return nil, err
	}
	if p.layout, err = d.layout(len(s.Bindings)); err != nil {
		return nil, err
	}
	if p.handle, err = d.cache.pipeline(d, m, p.layout.pipeline); err != nil {
		return nil, err
	}
	d.pipelines[key] = p
	return p, nil
}

func accessKey(bindings []device.Access) string {
	b := make([]byte, len(bindings))
	for i, a := range bindings {
		b[i] = byte(a)
	}
	return string(b)
}

// fits compares what a module declares with what the program says of it: Vulkan would not.
func (d *Device) fits(m *spirv.Module, s *device.Shader, uses []use) error {
	if m.Workgroup != s.Workgroup {
		return device.Invalid("the source declares workgroup %v, the program %v", m.Workgroup, s.Workgroup)
	}
	if m.WorkgroupMemory > int64(d.limits.MaxWorkgroupMemory) {
		return device.Invalid("the source declares %d bytes of workgroup memory, the device has %d", m.WorkgroupMemory, d.limits.MaxWorkgroupMemory)
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

// layout makes the layout of n storage buffers, or finds it.
func (d *Device) layout(n int) (layout, error) {
	if l, made := d.layouts[n]; made {
		return l, nil
	}
	bindings := make([]vk.DescriptorSetLayoutBinding, n)
	for i := range bindings {
		bindings[i] = vk.DescriptorSetLayoutBinding{Binding: uint32(i), DescriptorType: vk.DescriptorTypeStorageBuffer, DescriptorCount: 1,
			StageFlags: vk.ShaderStageFlags(vk.ShaderStageComputeBit)}
	}
	info := vk.DescriptorSetLayoutCreateInfo{SType: vk.StructureTypeDescriptorSetLayoutCreateInfo, BindingCount: uint32(n), PBindings: bindings}
	defer info.Free()
	var set vk.DescriptorSetLayout
	if err := failure(vk.CreateDescriptorSetLayout(d.gpu, &info, nil, &set)); err != nil {
		return layout{}, err
	}
	l := layout{sets: []vk.DescriptorSetLayout{set}}
	of := vk.PipelineLayoutCreateInfo{SType: vk.StructureTypePipelineLayoutCreateInfo, SetLayoutCount: 1, PSetLayouts: l.sets}
	defer of.Free()
	var pl vk.PipelineLayout
	err := failure(vk.CreatePipelineLayout(d.gpu, &of, nil, &pl))
	runtime.KeepAlive(l.sets)
	if err != nil {
		l.free(d.gpu)
		return layout{}, err
	}
	l.pipeline = pl
	d.layouts[n] = l
	return l, nil
}

// newPipeline has the driver compile a module.
func (d *Device) newPipeline(m *spirv.Module, of vk.PipelineLayout, cache vk.PipelineCache) (vk.Pipeline, error) {
	info := vk.ShaderModuleCreateInfo{SType: vk.StructureTypeShaderModuleCreateInfo, CodeSize: uint(4 * len(m.Code)), PCode: m.Code}
	defer info.Free()
	var module vk.ShaderModule
	err := failure(vk.CreateShaderModule(d.gpu, &info, nil, &module))
	runtime.KeepAlive(m)
	if err != nil {
		return nil, err
	}
	defer vk.DestroyShaderModule(d.gpu, module, nil)
	stage := vk.PipelineShaderStageCreateInfo{SType: vk.StructureTypePipelineShaderStageCreateInfo, Stage: vk.ShaderStageComputeBit,
		Module: module, PName: "main\x00"}
	infos := []vk.ComputePipelineCreateInfo{{SType: vk.StructureTypeComputePipelineCreateInfo, Layout: of, Stage: stage}}
	defer infos[0].Free()
	made := make([]vk.Pipeline, 1)
	if err := failure(vk.CreateComputePipelines(d.gpu, cache, 1, infos, nil, made)); err != nil {
		return nil, fmt.Errorf("the driver could not compile it: %w", err)
	}
	return made[0], nil
}
