package matmul

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// The C of the passes. Sizes of registers and vectors are the compiler's to know: a text serves all instruction sets.
var (
	//go:embed native/common.c
	nativeCommon string
	//go:embed native/naive.c
	nativeNaive string
	//go:embed native/pack.c
	nativePack string
	//go:embed native/tile.c
	nativeTile string
	//go:embed native/whole.c
	nativeWhole string
	//go:embed native/panels.c
	nativePanels string
	//go:embed native/product.c
	nativeProduct string
	//go:embed native/reduce.c
	nativeReduce string
	//go:embed native/vector.c
	nativeVector string
	//go:embed native/small.c
	nativeSmall string
)

// native is how a product is cut. Threads take groups of few rows. Consecutive groups with the same columns are
// computed in blocks of at most block rows, which a core's cache holds. Each sum adds its k's in an order that follows
// from the shape, so its bits do not depend on the threads.
type native struct {
	spec          Spec
	packA, packB  bool
	rows, columns int // of a group; multiples of what register tiles have in any instruction set
	block         int // rows that are computed at a time, at most
	steps         int // k's that are computed at a time
	split, splits int // k's of a group; the partial sums of splits > 1 are added by a pass of their own
}

const (
	tileRows       = 24      // a multiple of the rows of every register tile
	panelColumns   = 32      // a multiple of the columns of every register tile and panel
	mostSteps      = 1024    // k's that are computed at once, where A's rows lie along k
	packedSteps    = 384     // where they do not
	cachedMatrix   = 3 << 16 // elements of a B that is read as it lies: it stays in a core's cache
	directMatrix   = 1 << 16 // elements of a B that is read as it lies, whatever the number of rows: half of 512 KiB
	packingRows    = 256     // from which packing a larger B pays
	packingColumns = 128     // from which packing rows of A pays that share cache sets
	cachedColumns  = 384     // of a block of sums for some of the k's at a time, which stays in a core's cache
	fewColumns     = 192     // of such a block before an epilogue, or where there are few blocks
	leastSplit     = 256     // k's of a group, where several share a sum
	vectorRowsMost = 4       // rows of a product that takes as long as reading B
	groupFlops     = 2e6     // of a block at least, when columns and splits are chosen: some 20 µs of a core
	mostGroups     = 64
	leastGroups    = 16 // where there is so much work
	leastBlocks    = 12 // blocks of a product that takes its k's in steps: fewer and larger ones read the operands less often
	vectorGroups   = 48 // of a product with few rows
	smallFlops     = 1 << 22
	smallMatrix    = 1 << 15 // elements of B and of sums on the stack of a thread
	smallRows      = 4       // of a register tile
)

// nativeVariants returns the kernels of a CPU: the naive one, then by rising cost.
func nativeVariants(s Spec, l target.Limits) []Kernel {
	if s.Grouping != graph.Ungrouped {
		return nativeGroupedVariants(s, l)
	}
	naive := nativeNaiveKernel(s)
	s = s.flat()
	product := planNative(s)
	ks := []Kernel{naive, product.kernel("native", 1)}
	if s.M <= vectorRows {
		ks = append(ks, nativeVectorKernel(s))
	}
	if s.directB() {
		other := product
		other.packB = !product.packB
		ks = append(ks, other.kernel("native "+map[bool]string{true: "packed", false: "direct"}[other.packB], 1.2))
	}
	units := append(pairVariants(s, l), termVariants(s, l)...)
	if len(units) == 0 && product.small() {
		ks = append(ks, product.smallKernel())
	}
	ks = append(ks, units...)
	byCost(ks[1:])
	return ks
}

// flat returns the product of all rows of the batch as one matrix, where the batch shares B.
func (s Spec) flat() Spec {
	if s.Batch == 1 || s.BatchStrideB > 0 || s.TransA || s.BatchStrideA != s.M*s.K {
		return s
	}
	s.Batch, s.M, s.flattened = 1, s.Batch*s.M, s.M
	return s
}

// directB reports whether the product can read B as it lies: rows of whole vectors.
func (s Spec) directB() bool { return s.TypeB == F32 && !s.TransB && s.N%16 == 0 }

// packsB reports whether the product packs B although it could read it as it lies: there are so many rows that packing
// takes a few hundredths of the time, and B does not stay in a small cache.
func (s Spec) packsB() bool { return !s.directB() || s.K*s.N > directMatrix && s.M >= packingRows }

func (s Spec) flops() float64 {
	return 2 * float64(s.Batch) * float64(s.M) * float64(s.N) * float64(s.K)
}

// planNative cuts the product into groups of few rows: threads take several at a time, and few at the end.
func planNative(s Spec) native {
	n := native{spec: s, rows: tileRows, block: tileRows, split: s.K, splits: 1}
	// If K is a multiple of 1024, rows of A map to the same cache sets and may evict each other.
	n.packA = s.TypeA != F32 || s.TransA && s.N > 64 || s.K%1024 == 0 && s.N >= packingColumns
	want := s.wantedGroups(1)
	if s.K > mostSteps || s.TransA && s.K > packedSteps {
		n.planBlocks(min(want, leastBlocks))
		return n
	}
	n.packB = s.packsB() || s.K*s.N > cachedMatrix && s.M > tileRows && max(s.M, s.N) > 384
	n.columns = n.evenly(s.N, min(512, max(64, cachedMatrix/s.K)))
	n.steps = s.K
	n.narrow(n.columns/2, min(want, leastGroups/2))
	return n
}

// symmetric reports whether the kernel computes half of a symmetric product.
func (n native) symmetric() bool { return n.spec.Symmetric && n.spec.TypeA == F32 }

// half is the share of a symmetric product that is computed where tiles on the diagonal have so many columns.
func (s Spec) half(columns int) float64 { return min(1, 0.5+float64(columns)/float64(2*s.N)) }

// wantedGroups is the number of groups, each large enough, of a kernel with so many times the speed of one for f32.
func (s Spec) wantedGroups(speed float64) int {
	return int(max(1, min(s.flops()/(groupFlops*speed), mostGroups)))
}

// planBlocks cuts a product of many k's into blocks that a core's cache holds. Larger blocks read the operands less
// often. It makes at least the given number of blocks, if they stay large enough.
func (n *native) planBlocks(blocks int) {
	s := n.spec
	n.packB = s.packsB() || s.N%1024 == 0
	columns, rows, steps := cachedColumns, 4*tileRows, 256
	if s.TransA { // A is packed, which fewer steps keep in the cache until it is used
		steps = 128
	}
	if s.Declare != nil {
		columns = fewColumns
	}
	n.columns = n.evenly(s.N, columns)
	n.setBlock(rows)
	// Partial sums are written, read and added: they may not be more than the operands.
	if most := min(s.K/leastSplit, s.K*(s.M+s.N)/(3*s.M*s.N)); 2*n.count(n.block) <= blocks && most > 1 {
		n.split = roundUp(ceilDiv(s.K, min(most, ceilDiv(blocks, n.count(n.block)))), 8)
		n.splits = ceilDiv(s.K, n.split)
	}
	if !s.TransA { // the more columns, the more often a packed row is used
		n.narrow(fewColumns, blocks)
	}
	for n.block > 2*tileRows && n.count(n.block) < blocks {
		n.setBlock(n.block - tileRows)
	}
	n.narrow(fewColumns, blocks)
	n.steps = roundUp(ceilDiv(n.split, ceilDiv(n.split, steps)), 8)
}

// narrow limits the columns of a group where there are fewer blocks than wanted.
func (n *native) narrow(columns, blocks int) {
	if n.columns > columns && n.count(n.block) < blocks {
		n.columns = n.evenly(n.spec.N, columns)
	}
}

// setBlock sets the rows of a block, at most the given number, with blocks of about the same height.
func (n *native) setBlock(most int) {
	n.block = roundUp(ceilDiv(n.spec.M, ceilDiv(n.spec.M, most)), tileRows)
}

// tallRows returns the rows of a group that takes all k's at once, a multiple of grain. There are so many groups, or
// leastGroups if these have at least enough rows.
func (n native) tallRows(groups, grain, enough int) int {
	rows := func(groups int) int { return roundUp(ceilDiv(n.spec.M, ceilDiv(groups, n.count(n.spec.M))), grain) }
	return max(rows(groups), min(rows(leastGroups), enough))
}

// evenly returns the columns of a group, at most the given number, with groups of about the same width.
func (n native) evenly(columns, most int) int {
	return roundUp(ceilDiv(columns, ceilDiv(columns, most)), panelColumns)
}

// count is the number of groups, each of the given rows.
func (n native) count(rows int) int {
	return ceilDiv(n.spec.M, rows) * ceilDiv(n.spec.N, n.columns) * n.spec.Batch * n.splits
}

// kernel returns the kernel; cost is relative to other kernels for the same product.
func (n native) kernel(name string, cost float64) Kernel {
	s := n.spec
	k := Kernel{Name: name, Cost: cost * s.flops()}
	if n.symmetric() {
		k.Cost *= s.half(panelColumns)
	}
	b, panels := Binding{Operand: B}, roundUp(s.N, panelColumns)*s.K
	if n.packB {
		b = k.pack(s, panels)
	}
	c, part := n.sums(&k)
	t := nativeText(s, n.splits == 1)
	n.define(t, panels, part)
	k.Passes = append(k.Passes, t.pass(nativeTile+nativeWhole+nativePanels+nativeProduct, n.count(n.rows), Binding{Operand: A}, b, c))
	if n.splits > 1 {
		k.Passes = append(k.Passes, n.reduce(part, c))
	}
	return k
}

// define adds the sizes of the product; a matrix of packed B has panels of so many elements.
func (n native) define(t *text, panels, part int) {
	if n.packA || n.symmetric() {
		t.define("PACKED", n.spec.TypeA)
	}
	t.define("SYMMETRIC", n.symmetric())
	t.define("PACK_A", n.packA)
	t.define("PACK_B", n.packB)
	t.define("PANELS", panels)
	t.define("PART", part)
	t.define("ROWS", n.rows)
	t.define("COLUMNS", n.columns)
	t.define("BLOCK", n.block)
	t.define("STEPS", n.steps)
	t.define("SPLIT", n.split)
}

// sums returns where the product stores its sums: in C, or where there are several splits as parts of so many elements,
// which the kernel's name says.
func (n native) sums(k *Kernel) (to Binding, part int) {
	part = roundUp(n.spec.Batch*n.spec.M*n.spec.N, 64)
	if n.splits == 1 {
		return Binding{Operand: C}, part
	}
	k.Name += fmt.Sprintf(" split %d", n.splits)
	return k.scratch(4 * part * n.splits), part
}

// matricesB is the number of matrices of B.
func (s Spec) matricesB() int {
	switch {
	case s.BatchStrideB == 0:
		return 1
	case s.Grouping == graph.GroupedRows:
		return s.Groups
	}
	return s.Batch
}

// packSteps returns how many of the steps a group packs, where each step has so many blocks.
func packSteps(steps, blocks int) int {
	return roundUp(max(32, min(256, steps*blocks/leastGroups)), 32)
}

// pack adds the pass that packs B, and returns where the panels lie; a matrix has panels of so many elements.
func (k *Kernel) pack(s Spec, panels int) Binding {
	matrices := s.matricesB()
	const columns = 256
	steps := packSteps(s.K, matrices*ceilDiv(s.N, columns))
	to := k.scratch(4 * panels * matrices)
	t := nativeText(s, false)
	t.define("PACKED", s.TypeB)
	t.define("PANELS", panels)
	t.define("PACK_COLUMNS", columns)
	t.define("PACK_STEPS", steps)
	k.Passes = append(k.Passes, t.pass(nativePack, matrices*ceilDiv(s.N, columns)*ceilDiv(s.K, steps), Binding{Operand: B}, to))
	return to
}

// reduce is the pass that adds the partial sums.
func (n native) reduce(part int, parts Binding) Pass {
	s := n.spec
	rows := max(1, 1<<13/(s.N*n.splits))
	t := nativeText(s, true)
	t.define("ROWS", rows)
	t.define("SPLITS", n.splits)
	t.define("PART", part)
	first, others := parts, parts
	first.Size, others.Offset, others.Size = 4*part, parts.Offset+4*part, parts.Size-4*part
	return t.pass(nativeReduce, ceilDiv(s.Batch*s.M, rows), first, others, Binding{Operand: C})
}

// scratch takes scratch memory.
func (k *Kernel) scratch(bytes int) Binding {
	b := Binding{Operand: Scratch, Offset: k.Scratch, Size: roundUp(bytes, 256)}
	k.Scratch += b.Size
	return b
}

func nativeVectorKernel(s Spec) Kernel {
	columns := min(512, roundUp(ceilDiv(s.N, vectorGroups), panelColumns))
	t := nativeText(s, true)
	t.define("COLUMNS", columns)
	t.define("STEPS", min(2048, roundUp(s.K, 16)))
	cost := 4.0
	if s.M <= vectorRowsMost {
		cost = 0.5
	}
	return Kernel{Name: "native vector", Cost: cost * s.flops(),
		Passes: []Pass{t.pass(nativeVector, s.Batch*ceilDiv(s.N, columns), Binding{Operand: A}, Binding{Operand: B}, Binding{Operand: C})}}
}

// small reports whether compiling the product would take longer than it ever saves, and its sums have one order only.
// Of a symmetric product of two matrices the other kernel computes half, whose bits may differ from the whole
// product's.
func (n native) small() bool {
	s := n.spec
	return s.flops() <= smallFlops && roundUp(s.N, panelColumns)*(s.K+smallRows) <= smallMatrix && n.splits == 1 &&
		(!s.Symmetric || s.Shared)
}

func (n native) smallKernel() Kernel {
	s := n.spec
	rows := roundUp(ceilDiv(s.M, s.wantedGroups(1)), smallRows)
	t := nativeText(s, true)
	t.define("ROWS", rows)
	t.define("HIGH", smallRows)
	return Kernel{Name: "native small", Cost: 0.9 * s.flops(),
		Passes: []Pass{t.pass(nativeSmall, s.Batch*ceilDiv(s.M, rows), Binding{Operand: A}, Binding{Operand: B}, Binding{Operand: C})}}
}

func nativeNaiveKernel(s Spec) Kernel {
	t := nativeText(s, true)
	return Kernel{Name: "naive", Cost: 50 * s.flops(),
		Passes: []Pass{t.pass(nativeNaive, s.Batch*s.M, Binding{Operand: A}, Binding{Operand: B}, Binding{Operand: C})}}
}

// text builds the C of a pass: the epilogue, then the definitions of the sizes, then the code. The epilogue comes
// first, so that the macros of the code do not change it.
type text struct {
	strings.Builder
	spec  Spec
	store bool // the pass stores C
}

func nativeText(s Spec, store bool) *text {
	t := &text{spec: s, store: store}
	for _, d := range []struct {
		name  string
		value any
	}{
		{"BATCH", s.Batch}, {"M", s.M}, {"N", s.N}, {"K", s.K}, {"STRIDE_A", s.BatchStrideA}, {"STRIDE_B", s.BatchStrideB},
		{"TRANS_A", s.TransA}, {"TRANS_B", s.TransB}, {"A", s.TypeA}, {"B", s.TypeB},
	} {
		t.define(d.name, d.value)
	}
	c := F32
	if store {
		c = s.TypeC
	}
	t.define("C", c)
	return t
}

// define adds a macro.
func (t *text) define(name string, value any) {
	switch v := value.(type) {
	case bool:
		value = map[bool]int{true: 1}[v]
	case graph.DType:
		value = map[graph.DType]string{F32: "f32", F16: "f16", BF16: "bf16"}[v]
	}
	fmt.Fprintf(t, "#define %s %v\n", name, value)
}

// pass returns the pass of the code, which begins with its comment. Bindings are of A, B and C, in this order where the
// code has both operands, and of others behind them.
func (t *text) pass(code string, groups int, bindings ...Binding) Pass {
	p := Pass{Head: target.C + "\n", Bindings: bindings, Workgroup: [3]int{1, 1, 1}, Groups: [3]int{groups, 1, 1}}
	if t.store && t.spec.Declare != nil {
		p.Epilogue = t.spec.Declare
		if m := t.spec.flattened; m > 0 {
			p.Code += fmt.Sprintf("\n#define epilogue(args, acc, b, i, j) epilogue(args, acc, (i) / %du, (i) %% %du, j)", m, m)
		}
		p.Code += "\n#define EPILOGUE\n"
	}
	if t.spec.Shared && len(bindings) > 1 && bindings[0].Operand == A && bindings[1].Operand == B {
		p.Bindings = slices.Delete(slices.Clone(bindings), 1, 2)
		t.define("SHARED", true)
	}
	p.Code += t.String() + nativeCommon + "\n" + code
	return p
}
