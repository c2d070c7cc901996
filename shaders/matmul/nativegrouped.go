package matmul

import (
	_ "embed"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

var (
	//go:embed native/groupednaive.c
	nativeGroupedNaive string
)

// nativeGroupedVariants returns the kernels of a CPU for a grouped product: the naive one, then by rising cost.
func nativeGroupedVariants(s Spec, _ target.Limits) []Kernel {
	return []Kernel{nativeGroupedNaiveKernel(s)}
}

// groupedText begins the C of a pass of a grouped product.
func groupedText(s Spec, store bool) *text {
	t := nativeText(s, store)
	t.define("GROUPS", s.Groups)
	t.define("GROUPED_SUMS", s.Grouping == graph.GroupedSums)
	return t
}

func nativeGroupedNaiveKernel(s Spec) Kernel {
	return Kernel{Name: "naive", Cost: 50 * s.flops(), Passes: []Pass{groupedText(s, true).pass(nativeGroupedNaive, s.Batch*s.M,
		Binding{Operand: A}, Binding{Operand: B}, Binding{Operand: C}, Binding{Operand: Offsets})}}
}
