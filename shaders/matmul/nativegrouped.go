package matmul

import (
	_ "embed"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

var (
	//go:embed native/groupednaive.c
	nativeGroupedNaive string
	//go:embed native/groups.c
	nativeGroups string
	//go:embed native/groupedtiles.c
	nativeGroupedTiles string
	//go:embed native/grouped.c
	nativeGrouped string
)

// nativeGroupedVariants returns the kernels of a CPU for a grouped product: the naive one, then by rising cost.
func nativeGroupedVariants(s Spec, l target.Limits) []Kernel {
	product := planGrouped(s)
	ks := []Kernel{nativeGroupedNaiveKernel(s), product.kernel("native", 1)}
	if s.directB() {
		other := product
		other.packB = !product.packB
		ks = append(ks, other.kernel("native "+map[bool]string{true: "packed", false: "direct"}[other.packB], 1.2))
	}
	ks = append(ks, groupedPairVariants(s, l)...)
	ks = append(ks, termVariants(s, l)...)
	byCost(ks[1:])
	return ks
}

// grouped is a grouped product of a CPU, cut as the batch of products that it is when all groups are of one size. The
// sums are not split: each adds its k's in order.
type grouped struct{ native }

func planGrouped(s Spec) grouped {
	var p grouped
	each := s.evenly()
	if s.Grouping == graph.GroupedRows {
		p.native = planNative(each)
	} else {
		p.native = native{spec: each, packA: s.TypeA != F32 || s.N > 64, splits: 1, split: each.K}
		p.planBlocks(min(int(each.flops()/groupFlops), leastBlocks))
	}
	p.rows = p.block
	if s.Grouping == graph.GroupedRows && p.steps == each.K {
		p.rows = p.tallRows(each.wantedGroups(1), tileRows, 6*tileRows)
	}
	p.splits, p.split = 1, s.K
	p.spec = s
	return p
}

// groupCount is the number of groups of a kernel, each of so many rows.
func (n native) groupCount(rows int) int {
	s := n.spec
	if s.Grouping == graph.GroupedRows {
		return (s.M/rows + s.Groups) * ceilDiv(s.N, n.columns)
	}
	return n.count(rows)
}

// kernel returns the kernel; cost is relative to other kernels for the same product.
func (p grouped) kernel(name string, cost float64) Kernel {
	s := p.spec
	k := Kernel{Name: name, Cost: cost * s.flops()}
	b, panels := Binding{Operand: B}, roundUp(s.N, panelColumns)*s.K
	if p.packB {
		b = k.pack(s, panels)
	}
	t := groupedText(s)
	p.define(t, panels, 0)
	k.Passes = append(k.Passes, t.pass(nativeTile+nativeGroupedTiles+nativePanels+nativeGroups+nativeGrouped, p.groupCount(p.rows),
		Binding{Operand: A}, b, Binding{Operand: C}, Binding{Operand: Offsets}))
	return k
}

// grouped is the number of rows or k's that the groups share.
func (s Spec) grouped() int {
	if s.Grouping == graph.GroupedSums {
		return s.K
	}
	return s.M
}

// groupedText begins the C of a pass of a grouped product.
func groupedText(s Spec) *text {
	t := nativeText(s, true)
	t.defineGroups(s)
	return t
}

// defineGroups adds what the groups of a product are.
func (t *text) defineGroups(s Spec) {
	t.define("GROUPS", s.Groups)
	t.define("GROUPED", s.grouped())
	t.define("GROUPED_SUMS", s.Grouping == graph.GroupedSums)
}

func nativeGroupedNaiveKernel(s Spec) Kernel {
	return Kernel{Name: "naive", Cost: 50 * s.flops(), Passes: []Pass{groupedText(s).pass(nativeGroupedNaive, s.Batch*s.M,
		Binding{Operand: A}, Binding{Operand: B}, Binding{Operand: C}, Binding{Operand: Offsets})}}
}
