package matmul

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// checkGroups panics if the shape of a grouped product contradicts itself.
func (s Spec) checkGroups() {
	switch s.Grouping {
	case graph.GroupedRows:
		if s.Batch != 1 || s.TransA || s.Groups < 1 || s.Groups > 1 && s.BatchStrideB < s.K*s.N {
			panic(fmt.Sprintf("matmul: bad groups of rows: %d, batch %d, stride %d", s.Groups, s.Batch, s.BatchStrideB))
		}
	case graph.GroupedSums:
		if s.Batch != s.Groups || !s.TransA || s.TransB || s.BatchStrideA != 0 || s.BatchStrideB != 0 {
			panic(fmt.Sprintf("matmul: bad groups of sums: %d, batch %d, strides %d and %d", s.Groups, s.Batch, s.BatchStrideA, s.BatchStrideB))
		}
	}
}

// matrixB is the variable that numbers B's matrix.
func (s Spec) matrixB() string {
	if s.Grouping == graph.GroupedRows {
		return "e"
	}
	return "b"
}

// groups declares the array of the groups' offsets, binding 3.
func (g *source) groups() {
	if g.spec.Grouping != graph.Ungrouped {
		g.line("@group(0) @binding(3) var<storage, read_write> mm_groups: array<u32>;")
	}
}

// steps returns the range of k of an invocation that computes elements of row i of matrix b, and emits what it needs: for
// groups of rows e, the number of the row's group, which is the number of later groups' offsets that it has reached.
func (g *source) steps() (begin, end string) {
	s := g.spec
	switch s.Grouping {
	case graph.GroupedRows:
		g.line("var e = 0u;")
		g.line("for (var q = 1u; q < %du; q++) { e += select(0u, 1u, mm_groups[q] <= i); }", s.Groups)
	case graph.GroupedSums:
		g.line("let end = min(mm_groups[b + 1u], %du);", s.K)
		return "mm_groups[b]", "end"
	}
	return "0u", fmt.Sprintf("%du", s.K)
}

// groupedVariants returns the kernels of a grouped product besides the naive one.
func groupedVariants(Spec, target.Limits) []Kernel { return nil }
