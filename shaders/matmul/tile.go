package matmul

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// tile is the classic kernel for GPUs. A workgroup computes rows × cols elements of C. It iterates over slices of A and
// B of depth k's each, which it copies to workgroup memory. Each invocation keeps a block of C in registers, as vec4s
// along columns. With splits > 1 (split-K) different workgroups sum over different ranges of k, their partial sums go
// to scratch, and a second pass adds these in order.
type tile struct {
	rows, cols, depth int
	wx, wy            int // invocations; an invocation holds rows/wy × cols/wx sums, both factors multiples of four
	splits            int // ranges of k
}

var tileShapes = [...]tile{
	{rows: 32, cols: 32, depth: 16, wx: 8, wy: 8},
	{rows: 64, cols: 64, depth: 16, wx: 16, wy: 16},
	{rows: 64, cols: 64, depth: 16, wx: 8, wy: 8},
	{rows: 128, cols: 64, depth: 16, wx: 16, wy: 16},
	{rows: 128, cols: 64, depth: 16, wx: 8, wy: 16},
	{rows: 128, cols: 128, depth: 8, wx: 16, wy: 16},
	{rows: 128, cols: 128, depth: 16, wx: 16, wy: 16},
}

// fillTiles is the number of workgroups that keep a large GPU busy.
const fillTiles = 256

func tileVariants(s Spec, l target.Limits) []Kernel {
	var ks []Kernel
	for _, t := range tileShapes {
		if t.wx*t.wy > l.MaxInvocations || t.wx > l.MaxWorkgroupSize[0] || t.wy > l.MaxWorkgroupSize[1] ||
			t.memory()+s.blockMemory() > l.MaxWorkgroupMemory {
			continue
		}
		if fewRegisters(l) && t.sums() > 32 {
			continue
		}
		// Skip tiles that lie outside C for the most part, except the smallest.
		if t.rows > 32 && (t.rows >= 2*s.evenly().M || t.cols >= 2*s.N) {
			continue
		}
		t.splits = 1
		ks = append(ks, t.kernel(s, l))
		if s.Grouping != graph.Ungrouped {
			continue
		}
		if splits := min(fillTiles/t.count(s), s.K/(8*t.depth), 32); splits > 1 {
			t.splits = splits
			ks = append(ks, t.kernel(s, l))
		}
	}
	return ks
}

// sums is the number of elements of C that an invocation holds.
func (t tile) sums() int { return t.rows * t.cols / (t.wx * t.wy) }

func (t tile) count(s Spec) int { return s.Batch * s.rowBlocks(t.rows) * ceilDiv(s.N, t.cols) }

// stride is the distance in vec4s between rows of n elements in workgroup memory. It is one more than needed, which
// avoids bank conflicts.
func stride(n int) int { return n/4 + 1 }

func (t tile) memory() int { return 16 * t.depth * (stride(t.rows) + stride(t.cols)) }

// cost estimates the multiplications and loads of each wave of fillTiles workgroups. Small blocks of registers need
// more loads for each multiplication.
func (t tile) cost(s Spec) float64 {
	rm, rn := float64(t.rows/t.wy), float64(t.cols/t.wx)
	perK := float64(t.rows*t.cols) * (1 + 1/rm + 1/rn)
	waves := float64(ceilDiv(t.count(s)*t.splits, fillTiles))
	cost := waves * perK * float64(ceilDiv(s.evenly().K, t.splits)+64)
	if t.splits > 1 {
		cost += 5e5 + float64(s.Batch*s.M*s.N*t.splits)/fillTiles
	}
	return cost
}

func (t tile) kernel(s Spec, l target.Limits) Kernel {
	k := Kernel{Name: fmt.Sprintf("tile %dx%dx%d/%d", t.rows, t.cols, t.depth, t.wx*t.wy), Cost: t.cost(s)}
	if t.splits == 1 {
		k.Passes = []Pass{t.pass(s, l)}
		k.addBlocks(s, t.rows, l)
		return k
	}
	k.Name += fmt.Sprintf(" split %d", t.splits)
	size := s.splitSize()
	k.Scratch = 4 * size * t.splits
	first := t.pass(s, l)
	first.bind(C, Binding{Operand: Scratch, Size: k.Scratch})
	k.Passes = []Pass{first, reduction(s, l, size, t.splits)}
	return k
}

// splitSize is the number of elements of scratch that the partial sums of one split take. It is a multiple of 64, so
// that the binding of each split is aligned.
func (s Spec) splitSize() int { return roundUp(s.Batch*s.M*s.N, 64) }

// sums returns the Spec of a pass that stores f32 sums for the reduction. The reduction applies the epilogue and rounds
// to 16-bit floats, so that a result is rounded once only.
func (s Spec) sums() Spec {
	s.Epilogue = Epilogue{}
	return s
}

func (t tile) pass(s Spec, l target.Limits) Pass {
	out, splitDepth := s, s.K
	if t.splits > 1 {
		out = s.sums()
		splitDepth = roundUp(ceilDiv(s.K, t.splits), t.depth)
	}
	quadsA, quadsB := s.quadsA(), s.quadsB()
	if s.Shared && quadsA != quadsB {
		quadsA, quadsB = false, false
	}
	g := newSource(out, quadsA, quadsB, s.N%4 == 0)
	g.line("var<workgroup> sa: array<vec4<f32>, %d>;", t.depth*stride(t.rows))
	g.line("var<workgroup> sb: array<vec4<f32>, %d>;", t.depth*stride(t.cols))
	g.declareBlock()
	tiles := [3]int{ceilDiv(s.N, t.cols), s.rowBlocks(t.rows), s.Batch * t.splits}
	groups := g.main([2]int{t.wx, t.wy}, tiles, l, false)
	g.line("let b = tz / %du; let part = tz %% %du; let lt = l.y * %du + l.x;", t.splits, t.splits, t.wx)
	if s.Grouping == graph.GroupedSums {
		g.sumRange()
	} else {
		g.line("let end = min(%du, (part + 1u) * %du);", s.K, splitDepth)
	}
	g.rowBlock()
	for i := range t.rows / t.wy {
		for j := range t.cols / t.wx / 4 {
			g.line("var s%d_%d = vec4<f32>();", i, j)
		}
	}
	rows := tileSlice{g.a, s.TransA, t.rows, s.M, s.K, "b", s.BatchStrideA, s.firstRow(t.rows), s.M%t.rows == 0 &&
		s.Grouping != graph.GroupedRows, s.wholeSteps(t.depth)}
	cols := tileSlice{g.b, !s.TransB, t.cols, s.N, s.K, s.matrixB(), s.BatchStrideB, fmt.Sprintf("tx * %du", t.cols), s.N%t.cols == 0,
		s.wholeSteps(t.depth)}
	for _, o := range []tileSlice{rows, cols} {
		for r := range t.carried(o) {
			g.line("var n%s%d: vec4<f32>;", o.letter(), r)
		}
	}
	if s.Grouping == graph.GroupedSums {
		g.line("var k0 = begin;")
	} else {
		g.line("var k0 = part * %du;", splitDepth)
	}
	t.load(g, rows, "k0")
	t.load(g, cols, "k0")
	g.line("for (; k0 < end; k0 += %du) {", t.depth)
	g.line("workgroupBarrier();")
	t.store(g, rows)
	t.store(g, cols)
	g.line("workgroupBarrier();\nlet next = k0 + %du;\nif (next < end) {", t.depth)
	t.load(g, rows, "next")
	t.load(g, cols, "next")
	g.line("}")
	t.multiply(g)
	g.line("}")
	t.stores(g)
	return g.pass([3]int{t.wx, t.wy, 1}, groups, t.memory()+s.blockMemory())
}

// tileSlice is the slice of an operand in workgroup memory: n of the operand's size rows or columns, as [depth][n/4]
// vec4s.
type tileSlice struct {
	array
	contiguous  bool // the operand is contiguous along rows or columns, not along k
	n, size, k  int
	batch       string // the variable that numbers the matrix
	batchStride int
	first       string // row or column of the tile
	inside      bool   // no row or column of a tile lies outside the operand
	wholeSteps  bool   // no k of a slice lies outside the range
}

// letter is the operand's name in the kernel's text: a or b.
func (o tileSlice) letter() string { return o.name[len("mm_"):] }

// carried is the number of vec4s of a slice that an invocation copies to workgroup memory.
func (t tile) carried(o tileSlice) int { return t.depth * o.n / 4 / (t.wx * t.wy) }

// each calls do for every vec4 of a slice that an invocation copies. do may emit code that uses the variables x and d,
// the position of the vec4 in the slice. Adjacent invocations read adjacent elements.
func (t tile) each(g *source, o tileSlice, do func(r int)) {
	threads := t.wx * t.wy
	for r := range t.carried(o) {
		if o.contiguous {
			g.line("{ let x = (lt + %du) %% %du; let d = (lt + %du) / %du;", r*threads, o.n/4, r*threads, o.n/4)
		} else {
			g.line("{ let x = (lt + %du) / %du; let d = (lt + %du) %% %du;", r*threads, t.depth, r*threads, t.depth)
		}
		do(r)
		g.line("}")
	}
}

// load emits the reads of the slice at k0 into registers. They run while the previous slice is multiplied. Indices
// beyond k or n are clamped.
func (t tile) load(g *source, o tileSlice, k0 string) {
	t.each(g, o, func(r int) {
		kk, i := fmt.Sprintf("(%s + d)", k0), fmt.Sprintf("(%s + x * 4u)", o.first)
		if !o.wholeSteps || k0 == "k0" { // the range of k of a split may be empty
			kk = fmt.Sprintf("min(%s, %du)", kk, o.k-1)
		}
		within := func(i string, last int) string {
			if o.inside {
				return i
			}
			return fmt.Sprintf("min(%s, %du)", i, last)
		}
		if o.quads {
			g.line("n%s%d = %s;", o.letter(), r, o.read(fmt.Sprintf("%s * %du + %s * %du + %s / 4u", o.batch, o.batchStride/4, kk,
				o.size/4, within(i, o.size-4))))
			return
		}
		var elements [4]string
		for q := range elements {
			iq := within(fmt.Sprintf("%s + %du", i, q), o.size-1)
			if o.contiguous {
				elements[q] = o.read(fmt.Sprintf("%s * %du + %s * %du + %s", o.batch, o.batchStride, kk, o.size, iq))
			} else {
				elements[q] = o.read(fmt.Sprintf("%s * %du + (%s) * %du + %s", o.batch, o.batchStride, iq, o.k, kk))
			}
		}
		g.line("n%s%d = vec4<f32>(%s);", o.letter(), r, strings.Join(elements[:], ", "))
	})
}

// store emits the stores of the loaded registers to workgroup memory, with zeros beyond k.
func (t tile) store(g *source, o tileSlice) {
	t.each(g, o, func(r int) {
		v := fmt.Sprintf("n%s%d", o.letter(), r)
		if !o.wholeSteps {
			v = fmt.Sprintf("select(vec4<f32>(), %s, k0 + d < end)", v)
		}
		g.line("s%s[d * %du + x] = %s;", o.letter(), stride(o.n), v)
	})
}

// unroll is the number of k's in one iteration of the innermost loop. Their addresses in workgroup memory differ by
// constants only.
const unroll = 4

func (t tile) multiply(g *source) {
	g.line("for (var d = 0u; d < %du; d += %du) {", t.depth, unroll)
	g.line("let atA = d * %du + l.y; let atB = d * %du + l.x;", stride(t.rows), stride(t.cols))
	for u := range unroll {
		g.line("{")
		for j := range t.cols / t.wx / 4 {
			g.line("let b%d = sb[atB + %du];", j, u*stride(t.cols)+j*t.wx)
		}
		for i := range t.rows / t.wy {
			if i%4 == 0 {
				g.line("let a%d = sa[atA + %du];", i, u*stride(t.rows)+i/4*t.wy)
			}
			for j := range t.cols / t.wx / 4 {
				g.line("s%d_%d = fma(vec4<f32>(a%d.%c), b%d, s%d_%d);", i, j, i/4*4, "xyzw"[i%4], j, i, j)
			}
		}
		g.line("}")
	}
	g.line("}")
}

// stores emits the stores: of C with the epilogue, or of a split's partial sums to scratch.
func (t tile) stores(g *source) {
	s := g.spec
	if t.splits > 1 {
		g.line("let base = part * %du + b * %du;", s.splitSize(), s.M*s.N)
	} else {
		g.line("let base = b * %du;", s.M*s.N)
	}
	for i := range t.rows / t.wy {
		row := fmt.Sprintf("%s + (%du + l.y) * 4u + %du", s.firstRow(t.rows), i/4*t.wy, i%4)
		g.line("{ let i = %s; if (i < %s) {", row, s.pastRow())
		for j := range t.cols / t.wx / 4 {
			acc := fmt.Sprintf("s%d_%d", i, j)
			g.line("{ let j = tx * %du + (%du + l.x) * 4u;", t.cols, j*t.wx)
			if s.N%4 == 0 {
				g.line("if (j < %du) { mm_c[(base + i * %du + j) / 4u] = %s; }", s.N, s.N, g.quadValue(acc))
			} else {
				for q := range 4 {
					v := g.value(fmt.Sprintf("%s.%c", acc, "xyzw"[q]), "i", fmt.Sprintf("j + %du", q))
					g.line("if (j + %du < %du) { mm_c[base + i * %du + j + %du] = %s; }", q, s.N, s.N, q, v)
				}
			}
			g.line("}")
		}
		g.line("} }")
	}
}

// reduction returns the pass that adds the partial sums of the splits in order. size is Spec.splitSize. The pass binds
// the scratch in two halves, as A and B, so that C stays binding 2. With one split it does not read the second half,
// which lies behind the first.
func reduction(s Spec, l target.Limits, size, splits int) Pass {
	wx := min(64, l.MaxInvocations, l.MaxWorkgroupSize[0])
	quads, at := s.TypeC.Float16(), 1 // at: elements of an invocation, which stores 16-bit floats in whole words
	j, zero := fmt.Sprintf("id %% %du", s.N), "0.0"
	if quads {
		at, j, zero = 4, fmt.Sprintf("id %% %du * 4u", s.N/4), "vec4<f32>()"
	}
	total, half := s.Batch*s.M*s.N/at, max(splits/2, 1)
	s.TypeA, s.TypeB, s.Shared = F32, F32, false
	g := newSource(s, quads, quads, quads)
	groups := g.main([2]int{wx, 1}, [3]int{ceilDiv(total, wx), 1, 1}, l, true)
	g.line("let id = tx * %du + l.x;", wx)
	g.line("if (id >= %du) { return; }", total)
	g.line("let b = id / %du; let i = id / %du %% %du; let j = %s;", s.M*s.N/at, s.N/at, s.M, j)
	g.line("var s = %s;", zero)
	g.line("for (var p = 0u; p < %du; p++) { s += mm_a[p * %du + id]; }", half, size/at)
	if splits > 1 {
		g.line("for (var p = 0u; p < %du; p++) { s += mm_b[p * %du + id]; }", splits-half, size/at)
	}
	if quads {
		g.line("mm_c[id] = %s;", g.quadValue("s"))
	} else {
		g.line("mm_c[id] = %s;", g.value("s", "i", "j"))
	}
	p := g.pass([3]int{wx, 1, 1}, groups, 0)
	cut := 4 * size * half
	p.bind(A, Binding{Operand: Scratch, Size: cut})
	p.bind(B, Binding{Operand: Scratch, Offset: cut, Size: max(4*size*splits-cut, 256)})
	return p
}
