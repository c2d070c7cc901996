package measure

import (
	"slices"
	"strings"
	"unicode"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// GPU is a graphics card that is not present: figures of its maker's data sheet, without sparsity.
type GPU struct {
	Name      string
	Memory    int64   // bytes, as its driver reports them
	Float32   float64 // FLOP/s of f32
	Matrix    float64 // FLOP/s of the matrix units: factors of bf16 or f16, sums in f32
	Bandwidth float64 // bytes a second, to and from its memory
	Subgroup  int     // invocations
}

// GPUs is the table of cards that a plan may be made for.
func GPUs() []GPU {
	const mib = 1 << 20
	return []GPU{
		{"rtx-3090", 24576 * mib, 35.6e12, 71e12, 936e9, 32},
		{"rtx-4090", 24564 * mib, 82.6e12, 165.2e12, 1008e9, 32},
		{"rx-7900-xtx", 24560 * mib, 61.4e12, 122.8e12, 960e9, 64},
		{"a100-80gb", 81920 * mib, 19.5e12, 312e12, 2039e9, 32},
		{"h100", 81559 * mib, 66.9e12, 989.4e12, 3350e9, 32},
		{"h200", 143771 * mib, 66.9e12, 989.4e12, 4800e9, 32},
	}
}

// GPUNames lists the names of the table.
func GPUNames() (names []string) {
	for _, g := range GPUs() {
		names = append(names, g.Name)
	}
	return names
}

// PeakFLOPS is the peak of a card by the name that its driver reports, in FLOP/s: the peak of the matrix units for
// 16-bit factors, else the peak for f32. It is 0 for a card that is not in the table, such as a variant of one with
// another peak.
func PeakFLOPS(adapter string, halfFactors bool) float64 {
	words := strings.FieldsFunc(strings.ToLower(adapter), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if slices.ContainsFunc([]string{"laptop", "mobile", "pcie", "nvl", "d"},
		func(variant string) bool { return slices.Contains(words, variant) }) {
		return 0
	}
	for _, g := range GPUs() {
		if !slices.ContainsFunc(strings.Split(g.Name, "-"), func(word string) bool { return !slices.Contains(words, word) }) {
			if halfFactors {
				return g.Matrix
			}
			return g.Float32
		}
	}
	return 0
}

// The shares of a card's figures that portable kernels are taken to reach. In products, published Vulkan and WebGPU
// kernels reach between a fifth (H100) and three quarters (RTX 3090) of the matrix units' peak.
const (
	arithmeticShare = 0.4
	bandwidthShare  = 0.75
)

// Limits are the limits of a discrete GPU through Vulkan, with matrix units.
func (g GPU) Limits() *target.Limits {
	l := target.DefaultLimits()
	l.MaxBindingSize, l.MaxBufferSize = 2<<30, 1<<40
	l.MaxWorkgroupMemory, l.MaxInvocations, l.MaxWorkgroupSize = 32<<10, 1024, [3]int{1024, 1024, 64}
	l.SubgroupSize = g.Subgroup
	for _, input := range []string{"f16", "bf16"} {
		l.Cooperative = append(l.Cooperative, target.CooperativeMatrix{M: 16, N: 16, K: 16, Input: input, Result: "f32"})
	}
	return &l
}

func (g GPU) speed() speed {
	return speed{g.Float32 * arithmeticShare, g.Matrix * arithmeticShare, g.Bandwidth * bandwidthShare, 5e-6,
		partition.Link{Latency: 50e-6, Bandwidth: 10e9}}
}

// onMatrixUnits reports whether a kernel's products run on matrix units.
func onMatrixUnits(k exec.KernelInfo) bool {
	return strings.HasPrefix(k.Candidate, "tensor") || strings.HasPrefix(k.Candidate, "matrix")
}
