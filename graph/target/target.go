// Package target describes what kernels and memory plans are made for: the limits of a device and its matrix units.
// Backends fill a Limits when they open a device. Fusion, memory planning, lowering and the device's own checks all
// read the same one.
package target

import (
	"fmt"
	"slices"
)

// Limits bound every program of a device. The zero value is unusable; DefaultLimits are the limits that WebGPU
// guarantees.
type Limits struct {
	MaxBindings          int    `json:"max_bindings"`           // storage buffers of a shader stage
	MaxBindingSize       int64  `json:"max_binding_size"`       // bytes of one storage binding
	MaxBufferSize        int64  `json:"max_buffer_size"`        // bytes of one buffer
	OffsetAlignment      int64  `json:"offset_alignment"`       // bytes, of a binding's offset
	MaxWorkgroupMemory   int    `json:"max_workgroup_memory"`   // bytes
	MaxInvocations       int    `json:"max_invocations"`        // invocations of a workgroup
	MaxWorkgroupSize     [3]int `json:"max_workgroup_size"`     // invocations by dimension
	MaxDispatchDimension int    `json:"max_dispatch_dimension"` // workgroups along one dimension

	// Software marks a CPU: workgroup memory is no faster than any other memory there, and branches are expensive.
	Software     bool                `json:"software,omitempty"`
	SubgroupSize int                 `json:"subgroup_size,omitempty"` // invocations; 0: unknown, or not the same in every kernel
	Cooperative  []CooperativeMatrix `json:"cooperative,omitempty"`   // products that a subgroup, or an instruction of a CPU, computes at once
	Flexible     []FlexibleMatrix    `json:"flexible,omitempty"`      // products that a workgroup computes at once
	Assembly     bool                `json:"assembly,omitempty"`      // sources may be SPIR-V assembly; see Assembly
	Native       bool                `json:"native,omitempty"`        // sources are C; see C
}

// DefaultLimits returns the limits that every WebGPU implementation guarantees.
func DefaultLimits() Limits {
	return Limits{
		MaxBindings: 8, MaxBindingSize: 128 << 20, MaxBufferSize: 256 << 20, OffsetAlignment: 256,
		MaxWorkgroupMemory: 16384, MaxInvocations: 256, MaxWorkgroupSize: [3]int{256, 256, 64},
		MaxDispatchDimension: 65535,
	}
}

// Fold spreads n workgroups over two dimensions of a dispatch where one dimension is too short for them. The product
// of the dimensions is at least n: the kernel skips the workgroups from n on.
func (l Limits) Fold(n int) [3]int {
	if n <= l.MaxDispatchDimension {
		return [3]int{max(n, 1), 1, 1}
	}
	y := (n + l.MaxDispatchDimension - 1) / l.MaxDispatchDimension
	return [3]int{(n + y - 1) / y, y, 1}
}

// HasCooperative reports whether the device has cooperative matrices of input, "f16" or "bf16".
func (l Limits) HasCooperative(input string) bool {
	return slices.ContainsFunc(l.Cooperative, func(c CooperativeMatrix) bool { return c.Input == input })
}

// LargestCooperative returns the largest cooperative product that kernels are written for: factors of input, sums in
// f32, and sides of 8 or 16.
func (l Limits) LargestCooperative(input string) (best CooperativeMatrix, ok bool) {
	for _, c := range l.Cooperative {
		if c.Input == input && c.Result == "f32" && c.known() && c.M*c.N*c.K > best.M*best.N*best.K {
			best, ok = c, true
		}
	}
	return best, ok
}

// CooperativeMatrix is a product that a subgroup of a GPU, or an instruction of a CPU, computes at once: M×K by K×N of
// Input, added to M×N of Result.
type CooperativeMatrix struct {
	M      int    `json:"m"`
	N      int    `json:"n"`
	K      int    `json:"k"`
	Input  string `json:"input"`  // dtype of the factors: "f16" or "bf16"
	Result string `json:"result"` // dtype of the sum: "f32"
}

// The products that instructions of CPUs compute. Kernels know an instruction by its size.
var (
	AMX    = CooperativeMatrix{M: 16, N: 16, K: 32, Input: "bf16", Result: "f32"} // TDPBF16PS of x86-64
	AVX512 = CooperativeMatrix{M: 1, N: 16, K: 2, Input: "bf16", Result: "f32"}   // VDPBF16PS of x86-64
	NEON   = CooperativeMatrix{M: 1, N: 4, K: 2, Input: "bf16", Result: "f32"}    // BFDOT of arm64
)

// WGSL returns the type of the factors ("A", "B"), whose words the text calls f32, or of the sum ("C"). WGSL's
// extension has square matrices alone: the type of others is one of those, and Directives says their size.
func (c CooperativeMatrix) WGSL(role string) string {
	side := c.M
	if !c.square() {
		side = 16
	}
	return fmt.Sprintf("coop_mat%dx%d<f32, %s>", side, side, role)
}

func (c CooperativeMatrix) square() bool { return c.M == c.N && c.N == c.K }

// known reports whether kernels are written for matrices of the size.
func (c CooperativeMatrix) known() bool {
	side := func(n int) bool { return n == 8 || n == 16 }
	return side(c.M) && side(c.N) && side(c.K)
}

// The directives of kernels with such matrices that package shaders/spirv reads. WGSL has neither bf16 nor matrices
// that are not square: such kernels may load and store them and multiply them, and nothing else.
const (
	Bfloat16Directive = "enable gpupipe_bf16;\n"
	sizeDirective     = "enable gpupipe_matrices_%dx%dx%d;\n" // M, N and K
)

// Directives are the first lines of a kernel in WGSL with these matrices.
func (c CooperativeMatrix) Directives() string {
	s := "enable wgpu_cooperative_matrix;\n"
	if c.Input == "bf16" {
		s += Bfloat16Directive
	}
	if !c.square() {
		s += fmt.Sprintf(sizeDirective, c.M, c.N, c.K)
	}
	return s
}

// ReadSizeDirective reads the sizes of a line with Directives' third kind.
func ReadSizeDirective(line string) (c CooperativeMatrix, ok bool) {
	n, _ := fmt.Sscanf(line, sizeDirective, &c.M, &c.N, &c.K)
	return c, n == 3 && c.known()
}

// FlexibleMatrix is a product that a workgroup of Invocations computes at once: any M×K by K×N of Input, added to M×N
// of Result, whose sides are multiples of these M, N and K and at most Largest.
type FlexibleMatrix struct {
	M           int    `json:"m"`
	N           int    `json:"n"`
	K           int    `json:"k"`
	Input       string `json:"input"`       // dtype of the factors: "f16" or "bf16"
	Result      string `json:"result"`      // dtype of the sum: "f32"
	Invocations int    `json:"invocations"` // of the workgroup
	Largest     int    `json:"largest"`     // side
	Reserved    int    `json:"reserved"`    // bytes of workgroup memory that the driver takes for it
}

// Assembly is the beginning of a source that is SPIR-V assembly and not WGSL.
const Assembly = "; SPIR-V"

// C is the beginning of a source that is C and not WGSL. It defines the function of a kernel with the macro KERNEL; see
// package runtime/cpu.
const C = "// C"
