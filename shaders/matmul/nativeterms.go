package matmul

import (
	_ "embed"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

//go:embed native/terms.c
var nativeTerms string

// terms is the product of f32 by AMX, with each element as the sum of three bf16.
type terms struct {
	native
	padded int  // k's of a panel of B
	groupB bool // a group packs the panels that it uses, once for each block of its rows
}

const (
	cellSide      = 32              // rows or columns, and k's, of a cell of packed operands
	cellBytes     = 3 * 2 * 32 * 32 // three bf16 an element
	termSteps     = 512             // k's that are taken at once, where A's rows lie along k
	termBlock     = 128             // k's that are taken at a time otherwise
	termColumns   = 384             // of a group at most
	termRows      = 256             // of a group that takes its k's in blocks
	termRowsMost  = 384             // where A is transposed
	sharedPanels  = 1 << 19         // elements of a B that is packed for all groups: it stays in a core's cache
	termSpeed     = 2.7             // of the multiplications, in multiples of that by vectors
	termPackFlops = 40              // multiplications and additions by vectors in the time that packing an element takes
)

// termVariants returns the kernel for products of f32 by AMX, if the device has it.
func termVariants(s Spec, l target.Limits) []Kernel {
	if s.TypeA != F32 || s.TypeB != F32 || !slices.Contains(l.Cooperative, target.AMX) {
		return nil
	}
	if s.Grouping != graph.Ungrouped {
		return []Kernel{planGroupedTerms(s).kernel()}
	}
	return []Kernel{planTerms(s).kernel()}
}

// planTerms cuts the product into groups. A group packs its rows of A, so it has many columns. It reads panels of B
// from the cache, or packs them, for each block of its rows, so it has many rows.
func planTerms(s Spec) terms {
	p := terms{native: native{spec: s, split: s.K, splits: 1}, padded: roundUp(s.K, cellSide)}
	p.columns = p.evenly(s.N, termColumns)
	want := s.wantedGroups(termSpeed)
	if p.padded > termSteps || s.TransA {
		p.planTermBlocks(min(want, leastGroups/2))
		return p
	}
	p.steps, p.block = p.padded, 2*cellSide
	p.rows = p.tallRows(want, p.block, 2*p.block)
	return p
}

// planGroupedTerms cuts a grouped product as the batch of products that it is when all groups are of one size.
func planGroupedTerms(s Spec) terms {
	p := planTerms(s.evenly())
	p.spec, p.splits, p.split = s, 1, s.K
	return p
}

// planTermBlocks cuts a product whose groups take their k's in blocks. It makes at least the given number of groups, if
// blocks stay large enough.
func (p *terms) planTermBlocks(groups int) {
	s := p.spec
	p.steps = min(p.padded, termBlock)
	p.groupB = s.TransA || s.K*s.N > sharedPanels
	most := termRows
	if s.TransA {
		most = termRowsMost
	}
	if !p.whole() { // the sums of a group lie on the stack
		most = termRows
		p.columns = p.evenly(s.N, termRows)
	}
	p.limitRows(most)
	// Partial sums are written, read and added: they may not be more than the operands.
	if most := min(s.K/leastSplit, s.K*(s.M+s.N)/(3*s.M*s.N)); s.TransA && p.count(p.rows) < groups && most > 1 {
		splits := min(most, ceilDiv(groups, p.count(p.rows)))
		p.split = roundUp(ceilDiv(s.K, roundUp(splits, 2)), cellSide) // an even number: threads have equal shares
		p.splits = ceilDiv(s.K, p.split)
	}
	for p.rows > 2*cellSide && p.count(p.rows) < groups {
		p.limitRows(p.rows - cellSide)
	}
	p.narrow(fewColumns, groups)
}

// limitRows sets the rows of a group, at most the given number, with groups of about the same height.
func (p *terms) limitRows(most int) {
	p.rows = roundUp(ceilDiv(p.spec.M, ceilDiv(p.spec.M, most)), cellSide)
	p.block = p.rows
}

// whole reports whether sums are stored as they are, in whole tiles.
func (p terms) whole() bool {
	return p.spec.Declare == nil && p.spec.Grouping != graph.GroupedRows && p.spec.M%16 == 0 && p.spec.N%16 == 0
}

// symmetric reports whether the kernel computes half of a symmetric product. It can where sums lie in C, or in a block
// of one panel.
func (p terms) symmetric() bool { return p.spec.Symmetric && (p.whole() || p.split <= p.steps) }

// cost estimates the multiplications and, as so many of them, the packing of the operands.
func (p terms) cost() float64 {
	s := p.spec
	pad := func(n, side int) float64 { return float64(roundUp(n, side)) / float64(n) }
	panels := 1
	switch {
	case p.groupB:
		panels = s.rowBlocks(p.block)
	case s.Grouping == graph.GroupedRows:
		panels = s.matricesB()
	}
	packed := s.M*s.K*ceilDiv(s.N, p.columns) + s.K*s.N*panels
	flops := s.flops()
	if p.symmetric() {
		flops *= s.half(cellSide)
	}
	return flops/termSpeed*pad(s.K, cellSide)*pad(s.M, 16)*pad(s.N, 16) + termPackFlops*float64(s.Batch*packed)
}

func (p terms) kernel() Kernel {
	k := Kernel{Name: "native amx f32", Cost: p.cost()}
	b := Binding{Operand: B}
	if !p.groupB {
		b = p.packB(&k)
	}
	c, part := p.sums(&k)
	t := p.text(p.splits == 1)
	code, bindings := nativeAMX+nativeTerms, []Binding{{Operand: A}, b, c}
	if p.spec.Grouping != graph.Ungrouped {
		t.defineGroups(p.spec)
		code, bindings = nativeGroups+nativeAMX+nativeTerms, append(bindings, Binding{Operand: Offsets})
	}
	t.define("GROUP_B", p.groupB)
	t.define("SYMMETRIC", p.symmetric())
	t.define("PART", part)
	t.define("ROWS", p.rows)
	t.define("COLUMNS", p.columns)
	t.define("BLOCK", p.block)
	t.define("STEPS", p.steps)
	t.define("SPLIT", p.split)
	k.Passes = append(k.Passes, t.pass(code, p.groupCount(p.rows), bindings...))
	if p.splits > 1 {
		k.Passes = append(k.Passes, p.reduce(part, c))
	}
	return k
}

// text is the beginning of a pass's text.
func (p terms) text(store bool) *text {
	t := nativeText(p.spec, store)
	t.define("PADDED", p.padded)
	t.define("PANELS", p.panelBytes()/4)
	return t
}

// panelBytes is the size of a matrix's panels.
func (p terms) panelBytes() int {
	return roundUp(p.spec.N, cellSide) / cellSide * (p.padded / cellSide) * cellBytes
}

// packB adds the pass that packs B, and returns where the panels lie.
func (p terms) packB(k *Kernel) Binding {
	s, matrices := p.spec, p.spec.matricesB()
	const columns = 128
	steps := packSteps(s.K, matrices*ceilDiv(s.N, columns))
	to := k.scratch(p.panelBytes() * matrices)
	t := p.text(false)
	t.define("PACK", true)
	t.define("PACK_COLUMNS", columns)
	t.define("PACK_STEPS", steps)
	k.Passes = append(k.Passes, t.pass(nativeTerms, matrices*ceilDiv(s.N, columns)*ceilDiv(s.K, steps), Binding{Operand: B}, to))
	return to
}
