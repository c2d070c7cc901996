//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	vk "github.com/vulkan-go/vulkan"
)

// addCooperative adds the cooperative matrices that kernels can use, if the device has all that they require.
func (a *adapter) addCooperative(instance vk.Instance, version uint32) {
	C.gv_cooperative_of(loader.get, unsafe.Pointer(instance), unsafe.Pointer(a.physical), C.uint32_t(version), &a.cooperative)
	fixed := a.Subgroup[0] == a.Subgroup[1]
	if fixed {
		a.Limits.SubgroupSize = a.Subgroup[0]
	}
	if a.cooperative.matrices == 0 || !fixed && a.cooperative.subgroup_size == 0 {
		a.cooperative = C.gv_cooperative{}
		return
	}
	for _, m := range a.Matrices {
		usable := m.A == "f16" || m.A == "bf16" && a.cooperative.bfloat16 != 0
		c := target.CooperativeMatrix{M: m.M, N: m.N, K: m.K, Input: m.A, Result: m.Result}
		if usable && m.B == m.A && m.C == "f32" && m.Result == "f32" && m.Scope == "subgroup" && !m.Saturating &&
			!slices.Contains(a.Limits.Cooperative, c) {
			a.Limits.Cooperative = append(a.Limits.Cooperative, c)
		}
	}
	if len(a.Limits.Cooperative) > 0 { // of several sizes the smallest, which is the width of the hardware's instructions
		a.Limits.SubgroupSize = a.Subgroup[0]
	}
	a.addFlexible(instance)
}

// addFlexible adds the matrices of flexible size that kernels can use.
func (a *adapter) addFlexible(instance vk.Instance) {
	c := &a.cooperative
	if c.second == 0 || !a.Limits.Assembly {
		return
	}
	var all [C.GV_MOST_FLEXIBLE]C.gv_flexible
	n := C.gv_flexible_of(loader.get, unsafe.Pointer(instance), unsafe.Pointer(a.physical), &all[0])
	for _, f := range all[:n] {
		m := shapeOf(C.gv_shape{f.m, f.n, f.k, f.a, f.b, f.c, f.result, f.saturating, f.scope})
		a.Flexible = append(a.Flexible, Flexible{m, int(f.invocations)})
		usable := m.A == "f16" || m.A == "bf16" && c.bfloat16 != 0
		if usable && m.B == m.A && m.C == "f32" && m.Result == "f32" && m.Scope == "workgroup" && !m.Saturating &&
			c.workgroup_scope != 0 && c.flexible_sizes != 0 && c.tensor_addressing != 0 && f.invocations <= c.most_invocations {
			a.Limits.Flexible = append(a.Limits.Flexible, target.FlexibleMatrix{M: m.M, N: m.N, K: m.K, Input: m.A, Result: m.Result,
				Invocations: int(f.invocations), Largest: int(c.largest), Reserved: int(c.reserved)})
		}
	}
}

// matrixFeatures returns what the compiler may use in kernels with matrices.
func (a *adapter) matrixFeatures() spirv.Features {
	var f spirv.Features
	if len(a.Limits.Cooperative)+len(a.Limits.Flexible) > 0 {
		f = spirv.Float16 | spirv.Subgroups | spirv.CooperativeMatrix
	}
	if len(a.Limits.Flexible) > 0 {
		f |= spirv.TensorAddressing
	}
	return f
}

// subgroup returns the subgroup size that a kernel's pipeline must request, with all subgroups full; 0 leaves both to
// the device. Before SPIR-V 1.6, matrices require full subgroups even if there is only one size.
func (a *adapter) subgroup(m *spirv.Module) C.uint32_t {
	fixed := a.Subgroup[0] == a.Subgroup[1]
	if !m.Subgroups || fixed && (!m.Matrices || a.cooperative.subgroup_size == 0) {
		return 0
	}
	return C.uint32_t(a.Limits.SubgroupSize)
}
