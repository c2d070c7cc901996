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
			panic(fmt.Sprintf("matmul: bad groups of sums: %d, batch %d, strides %d and %d", s.Groups, s.Batch, s.BatchStrideA,
				s.BatchStrideB))
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

// groups adds the array of the groups' offsets, binding 3.
func (g *source) groups() {
	if g.spec.Grouping != graph.Ungrouped {
		g.arrays = append(g.arrays, Array{"mm_groups", "u32"})
	}
}

// steps returns the range of k of an invocation that computes elements of row i of matrix b, and emits what it needs:
// for groups of rows e, the number of the row's group, which is the number of later groups' offsets that it has
// reached.
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
func groupedVariants(s Spec, l target.Limits) []Kernel {
	if l.Software {
		return nil
	}
	ks := append(tileVariants(s, l), cooperativeVariants(s, l)...)
	if s.Grouping == graph.GroupedRows {
		ks = append(ks, vectorVariants(s, l)...)
	}
	return ks
}

// evenly returns the batch of products that a grouped product is when all groups are of one size. Others are their own.
func (s Spec) evenly() Spec {
	switch s.Grouping {
	case graph.GroupedRows:
		s.Batch, s.M = s.Groups, ceilDiv(s.M, s.Groups)
	case graph.GroupedSums:
		s.K = ceilDiv(s.K, s.Groups)
	}
	return s
}

// rowBlocks is the number of blocks of rows, each of one group if the rows are grouped. It bounds what the offsets
// make.
func (s Spec) rowBlocks(rows int) int {
	if s.Grouping == graph.GroupedRows {
		return s.M/rows + s.Groups
	}
	return ceilDiv(s.M, rows)
}

// firstRow is the first row of a workgroup's block, and pastRow the end of the rows that it stores.
func (s Spec) firstRow(rows int) string {
	if s.Grouping == graph.GroupedRows {
		return "first"
	}
	return fmt.Sprintf("ty * %du", rows)
}

func (s Spec) pastRow() string {
	if s.Grouping == graph.GroupedRows {
		return "past"
	}
	return fmt.Sprintf("%du", s.M)
}

// wholeSteps reports whether a range of k consists of whole slices of a depth.
func (s Spec) wholeSteps(depth int) bool {
	return s.K%depth == 0 && s.Grouping != graph.GroupedSums
}

// lastStep is the end of the k's.
func (s Spec) lastStep() string {
	if s.Grouping == graph.GroupedSums {
		return "end"
	}
	return fmt.Sprintf("%du", s.K)
}

// blockMemory is the workgroup memory, in bytes, by which the lanes of a workgroup learn its group.
func (s Spec) blockMemory() int {
	if s.Grouping == graph.Ungrouped {
		return 0
	}
	return 16
}

// declareBlock declares what the lanes of a workgroup learn of its group.
func (g *source) declareBlock() {
	if g.spec.Grouping != graph.Ungrouped {
		g.line("var<workgroup> mm_block: vec4<u32>;")
	}
}

// rowBlock emits, for groups of rows, the workgroup's group e and its rows, from first to past. Workgroups without rows
// return.
func (g *source) rowBlock() {
	if g.spec.Grouping != graph.GroupedRows {
		return
	}
	g.line("if (l.x + l.y == 0u) { mm_block = vec4<u32>(mm_groups[ty * 4u], mm_groups[ty * 4u + 1u], mm_groups[ty * 4u + 2u], 0u); }")
	g.line("let block = workgroupUniformLoad(&mm_block);")
	g.line("let e = block.x; let first = block.y; let past = block.z;")
	g.line("if (first >= past) { return; }")
}

// sumRange emits the k's of group b, from begin to end.
func (g *source) sumRange() {
	g.line("if (l.x + l.y == 0u) { mm_block = vec4<u32>(mm_groups[b], min(mm_groups[b + 1u], %du), 0u, 0u); }", g.spec.K)
	g.line("let block = workgroupUniformLoad(&mm_block);")
	g.line("let begin = block.x; let end = block.y;")
}

// addBlocks makes the only pass of a kernel for groups of rows read its blocks, each of so many rows, from scratch, and
// adds the pass before it that finds them.
func (k *Kernel) addBlocks(s Spec, rows int, l target.Limits) {
	if s.Grouping != graph.GroupedRows {
		return
	}
	n := s.rowBlocks(rows)
	k.Scratch = 16 * n
	blocks := Binding{Operand: Scratch, Size: k.Scratch}
	k.Passes[0].bind(Offsets, blocks)
	width := min(64, l.MaxInvocations, l.MaxWorkgroupSize[0])
	g := &source{arrays: []Array{{"offsets", "u32"}, {"blocks", "u32"}}}
	groups := g.main([2]int{width, 1}, [3]int{ceilDiv(n, width), 1, 1}, l, true)
	g.line("let id = tx * %du + l.x;", width)
	g.line("if (id >= %du) { return; }", n)
	g.line("var left = id; var begin = 0u; var e = 0u; var first = 0u; var past = 0u;")
	g.line("for (; e < %du; e++) {", s.Groups)
	g.line("var end = %du;", s.M)
	g.line("if (e < %du) { end = clamp(offsets[e + 1u], begin, %du); }", s.Groups-1, s.M)
	g.line("let count = (end - begin + %du) / %du;", rows-1, rows)
	g.line("if (left < count) { first = begin + left * %du; past = min(first + %du, end); break; }", rows, rows)
	g.line("left -= count; begin = end;\n}")
	g.line("blocks[id * 4u] = min(e, %du); blocks[id * 4u + 1u] = first; blocks[id * 4u + 2u] = past; blocks[id * 4u + 3u] = 0u;\n}",
		s.Groups-1)
	first := Pass{Code: g.String(), Arrays: g.arrays, Bindings: []Binding{{Operand: Offsets}, blocks}, Workgroup: [3]int{width, 1, 1},
		Groups: groups}
	k.Passes = []Pass{first, k.Passes[0]}
}
