// Package vulkan runs programs on GPUs through Vulkan itself, on Linux. Beside what runtime/webgpu offers it records a program once and
// not at each run, puts barriers only where one command needs what another wrote, and tells all that a GPU can do.
//
// Vulkan checks nothing: what is wrong is undefined. So everything is checked before it is handed over: programs by device.Checker,
// shaders by naga and by the bindings that their SPIR-V declares.
package vulkan

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders/spirv"
)

// Adapter is what a GPU is, and what it can do.
type Adapter struct {
	device.Info
	Details
}

// Details of a GPU that WebGPU does not tell.
type Details struct {
	Limits   target.Limits `json:"limits"`
	Heaps    []Heap        `json:"memory_heaps"`
	Subgroup [2]int        `json:"subgroup_sizes"` // least and most invocations
	Float16  bool          `json:"float16"`        // in arithmetic and in storage
	// ImportAlignment is that of the host's memory which the GPU reaches itself, in bytes; 0: it does not.
	ImportAlignment int64      `json:"import_alignment"`
	Matrices        []Matrix   `json:"cooperative_matrices,omitempty"`
	Flexible        []Flexible `json:"flexible_matrices,omitempty"`
}

// Heap is a memory of the machine.
type Heap struct {
	Bytes  int64    `json:"bytes"`
	Device bool     `json:"device"`          // the GPU's own, or as near to it as memory is
	Host   bool     `json:"host"`            // the host can reach some of it at least
	Types  []string `json:"types,omitempty"` // what memory is to be had there: "device_local host_visible host_coherent"
}

// Matrix is a product that a subgroup computes at once: M×K by K×N, with C added.
type Matrix struct {
	M          int    `json:"m"`
	N          int    `json:"n"`
	K          int    `json:"k"`
	A          string `json:"a"` // "f16"
	B          string `json:"b"`
	C          string `json:"c"`
	Result     string `json:"result"`
	Saturating bool   `json:"saturating,omitempty"`
	Scope      string `json:"scope"` // "subgroup"
}

// String is like "16×16×16 f16·f16+f32".
func (m Matrix) String() string {
	return fmt.Sprintf("%d×%d×%d %s·%s+%s", m.M, m.N, m.K, m.A, m.B, m.C)
}

// Flexible is a product of matrices whose sides may be any multiples of those that are given.
type Flexible struct {
	Matrix
	Invocations int `json:"invocations,omitempty"` // of a workgroup, where that is the scope
}

// Options of a device.
type Options struct {
	Dump         device.Dump // receives the kernels that are loaded, and their SPIR-V; nil: they are not dumped
	MemoryBudget int64       // bytes of buffers; 0: most of what the GPU has, or three quarters of what it shares with the host
	// CacheDir keeps shaders and pipelines between runs. It must belong to the user alone, and is made so; "" keeps nothing.
	CacheDir string
}

// MakeCache makes the folder for Options.CacheDir, or tells why Open would refuse the one that is there: others may write to it, say.
func MakeCache(dir string) error { return spirv.MakeCache(dir) }
