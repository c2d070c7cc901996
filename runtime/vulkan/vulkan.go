// Package vulkan runs programs on GPUs through Vulkan itself, on Linux. Unlike runtime/webgpu it records a program once
// instead of at each run, places barriers only where a command needs what another wrote, and reports everything that a
// GPU can do.
//
// Vulkan checks nothing, and wrong use is undefined. So the package checks everything first: programs by
// device.Checker, shaders by naga and by the bindings that their SPIR-V declares.
package vulkan

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders/spirv"
)

// Adapter describes a GPU and its abilities.
type Adapter struct {
	device.Info
	Details
}

// Details are what WebGPU does not report about a GPU.
type Details struct {
	Limits   target.Limits `json:"limits"`
	Heaps    []Heap        `json:"memory_heaps"`
	Subgroup [2]int        `json:"subgroup_sizes"` // minimum and maximum, in invocations
	Float16  bool          `json:"float16"`        // in arithmetic and in storage
	// ImportAlignment is the alignment of host memory that the GPU can access, in bytes; 0: it cannot.
	ImportAlignment int64      `json:"import_alignment"`
	Matrices        []Matrix   `json:"cooperative_matrices,omitempty"`
	Flexible        []Flexible `json:"flexible_matrices,omitempty"`
}

// Heap is one of the machine's memories.
type Heap struct {
	Bytes  int64    `json:"bytes"`
	Device bool     `json:"device"`          // local to the GPU
	Host   bool     `json:"host"`            // the host can access at least some of it
	Types  []string `json:"types,omitempty"` // memory types: "device_local host_visible host_coherent"
}

// Matrix is a product that a subgroup computes at once, as the driver reports it: M×K by K×N, added to C.
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

// String returns text such as "16×16×16 f16·f16+f32".
func (m Matrix) String() string {
	return fmt.Sprintf("%d×%d×%d %s·%s+%s", m.M, m.N, m.K, m.A, m.B, m.C)
}

// Flexible is a product of matrices whose sides may be any multiples of M, N and K.
type Flexible struct {
	Matrix
	Invocations int `json:"invocations,omitempty"` // of the workgroup, if that is the scope
}

// Options of a device.
type Options struct {
	Dump         device.Dump // receives the kernels that are loaded, and their SPIR-V; nil: they are not dumped
	MemoryBudget int64       // bytes of buffers; 0: 15/16 of the GPU's memory, or three quarters of the memory that it shares with the host
	// CacheDir is the folder of compiled shaders and pipelines. It must belong to the user alone, and is made so; ""
	// keeps nothing between runs.
	CacheDir string
}

// MakeCache makes the folder for Options.CacheDir. Its error is why Open would refuse an existing one, for instance
// because other users may write to it.
func MakeCache(dir string) error { return spirv.MakeCache(dir) }
