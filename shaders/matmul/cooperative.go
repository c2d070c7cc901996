package matmul

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// cooperative is the kernel for tensor cores. A workgroup computes rows × columns elements of C. It iterates over
// slices of A and B of depth k's each, which it copies to workgroup memory. Each subgroup keeps a grid of matrices of C
// in registers and adds the products of the slices' matrices to them. Meanwhile the next slice is loaded from global
// memory to registers. 16-bit floats are copied as words, sixteen bytes at a time; package shaders/spirv gives the
// matrices their type.
type cooperative struct {
	size        target.CooperativeMatrix // of one matrix
	lanes       int                      // invocations of a subgroup
	down, right int                      // subgroups of a workgroup, along rows and columns
	m, n, k     int                      // m × n matrices of C for each subgroup; k matrices along the depth of a slice
	transposes  bool                     // slices lie along k in workgroup memory, whatever the operands do
	double      bool                     // two slices in workgroup memory, and one barrier for each slice instead of two
	splits      int                      // ranges of k
}

var cooperativeShapes = [...]cooperative{
	{down: 2, right: 2, m: 1, n: 1, k: 4, double: true},
	{down: 2, right: 2, m: 2, n: 2, k: 2, double: true},
	{down: 2, right: 2, m: 4, n: 2, k: 2, double: true},
	{down: 2, right: 2, m: 4, n: 4, k: 2},
	{down: 2, right: 2, m: 4, n: 4, k: 2, double: true},
	{down: 4, right: 2, m: 2, n: 4, k: 2, double: true},
	{down: 4, right: 2, m: 2, n: 4, k: 4},
	{down: 4, right: 2, m: 4, n: 4, k: 2},
	{down: 2, right: 4, m: 4, n: 4, k: 2},
}

// narrowShapes are for devices with few registers for each lane: they have more subgroups with fewer matrices each.
var narrowShapes = [...]cooperative{
	{down: 2, right: 2, m: 1, n: 1, k: 4, double: true},
	{down: 2, right: 2, m: 2, n: 2, k: 1, double: true},
	{down: 4, right: 4, m: 2, n: 1, k: 2},
	{down: 4, right: 4, m: 2, n: 2, k: 2},
	{down: 4, right: 4, m: 4, n: 2, k: 1},
	{down: 8, right: 4, m: 2, n: 2, k: 2},
}

// gathers reports whether a lane of the device holds elements of a matrix with successive k's, and loads them one by
// one where they are not adjacent: on AMD's devices, which alone have matrices of 16×16×16 and no others, and on
// Intel's. NVIDIA's have an instruction that transposes matrices while it loads them.
func gathers(l target.Limits) bool {
	other := func(c target.CooperativeMatrix) bool { return c.M != 16 || c.N != 16 || c.K != 16 }
	return fewRegisters(l) || len(l.Flexible) == 0 && !slices.ContainsFunc(l.Cooperative, other)
}

// fillTensor is the number of workgroups of these kernels that keep a large GPU busy.
const fillTensor = 128

func cooperativeVariants(s Spec, l target.Limits) []Kernel {
	if s.TypeA == F32 || s.TypeA != s.TypeB || l.SubgroupSize == 0 {
		return nil
	}
	size, ok := l.LargestCooperative(s.TypeA.String())
	if !ok {
		return nil
	}
	shapes := cooperativeShapes[:]
	if fewRegisters(l) {
		shapes = narrowShapes[:]
	}
	var ks []Kernel
	for _, t := range shapes {
		t.size, t.lanes, t.splits, t.transposes = size, l.SubgroupSize, 1, gathers(l)
		a, b := t.slices(s)
		if t.threads() > min(l.MaxInvocations, l.MaxWorkgroupSize[0]) || t.memory(s)+s.blockMemory() > l.MaxWorkgroupMemory ||
			a.vec4s()%t.threads() != 0 || b.vec4s()%t.threads() != 0 {
			continue
		}
		// Skip tiles that lie outside C for the most part, except the smallest.
		if t.m > 1 && (t.rows() >= 2*roundUp(s.evenly().M, size.M) || t.cols() >= 2*roundUp(s.N, size.N)) {
			continue
		}
		ks = append(ks, t.kernel(s, l))
		if s.Grouping != graph.Ungrouped {
			continue
		}
		if splits := min(fillTensor/t.count(s), s.K/(8*t.depth()), 32); splits > 1 {
			t.splits = splits
			t.splits = ceilDiv(s.K, t.splitDepth(s)) // so that none is empty
			ks = append(ks, t.kernel(s, l))
		}
	}
	return ks
}

func (t cooperative) rows() int    { return t.down * t.m * t.size.M }
func (t cooperative) cols() int    { return t.right * t.n * t.size.N }
func (t cooperative) depth() int   { return t.k * t.size.K }
func (t cooperative) threads() int { return t.down * t.right * t.lanes }

func (t cooperative) count(s Spec) int {
	return s.Batch * s.rowBlocks(t.rows()) * ceilDiv(s.N, t.cols())
}

// splitDepth is the number of k's in a split's range.
func (t cooperative) splitDepth(s Spec) int { return roundUp(ceilDiv(s.K, t.splits), t.depth()) }

// cost estimates the multiplications, each a sixteenth of an ordinary one, and the loads of each wave of fillTensor
// workgroups.
func (t cooperative) cost(s Spec) float64 {
	perK := float64(t.rows()*t.cols())/16 + float64(t.rows()+t.cols()) + float64(t.rows()*t.cols())/64*(1/float64(t.m)+1/float64(t.n))
	if !t.double {
		perK *= 1.02
	}
	waves := float64(ceilDiv(t.count(s)*t.splits, fillTensor))
	cost := waves * perK * float64(ceilDiv(s.evenly().K, t.splits)+64)
	if t.splits > 1 {
		cost += 2e5 + float64(s.Batch*s.M*s.N*t.splits)/fillTensor
	}
	return cost
}

func (t cooperative) kernel(s Spec, l target.Limits) Kernel {
	k := Kernel{Name: fmt.Sprintf("tensor %dx%dx%d/%d", t.rows(), t.cols(), t.depth(), t.threads()), Cost: t.cost(s)}
	if t.double {
		k.Name += " double"
	}
	first := t.pass(s, l)
	if t.splits == 1 {
		k.Passes = []Pass{first}
		k.addBlocks(s, t.rows(), l)
		return k
	}
	k.Name += fmt.Sprintf(" split %d", t.splits)
	size := s.splitSize()
	k.Scratch = 4 * size * t.splits
	first.bind(C, Binding{Operand: Scratch, Size: k.Scratch})
	k.Passes = []Pass{first, reduction(s, l, size, t.splits)}
	return k
}

// slices returns the slices of A and B.
func (t cooperative) slices(s Spec) (a, b slice) {
	a = slice{name: "a", first: s.firstRow(t.rows()), tile: t.rows(), depth: t.depth(), size: s.M, k: s.K, alongK: !s.TransA,
		batch: s.Batch, item: "b", batchStride: s.BatchStrideA}
	b = slice{name: "b", first: fmt.Sprintf("tx * %du", t.cols()), tile: t.cols(), depth: t.depth(), size: s.N, k: s.K, alongK: s.TransB,
		batch: s.Batch, item: s.matrixB(), batchStride: s.BatchStrideB}
	a.array, b.array = "mm_a", "mm_b"
	if s.Shared && a.wgslType() == b.wgslType() {
		b.array = a.array
	}
	a.inside, b.inside = s.M%a.tile == 0 && s.Grouping != graph.GroupedRows, s.N%b.tile == 0
	a.wholeSteps, b.wholeSteps, a.end, b.end = s.wholeSteps(t.depth()), s.wholeSteps(t.depth()), s.lastStep(), s.lastStep()
	if s.Grouping == graph.GroupedRows {
		b.batch = s.Groups
	}
	a.transposed, b.transposed = t.transposes && !a.alongK, t.transposes && !b.alongK
	b.offset = a.memory()
	return a, b
}

// stripStride is the distance between rows of C in workgroup memory, in vec4s. It is one more than needed, which avoids
// bank conflicts.
func (t cooperative) stripStride() int { return t.cols()/4 + 1 }

// vec4s is the size of the workgroup memory in vec4s. It holds the slices, and after the loop strips of C.
func (t cooperative) vec4s(s Spec) int {
	a, b := t.slices(s)
	n := a.memory() + b.memory()
	if t.double {
		n *= 2
	}
	return max(n, t.down*t.size.M*t.stripStride())
}

func (t cooperative) memory(s Spec) int { return 16 * t.vec4s(s) }

func (t cooperative) pass(s Spec, l target.Limits) Pass {
	out := s
	if t.splits > 1 {
		out = s.sums()
	}
	a, b := t.slices(s)
	g := t.newSource(out, a, b)
	g.line("var<workgroup> stage: array<vec4<f32>, %d>;", t.vec4s(s))
	g.declareBlock()
	tiles := [3]int{ceilDiv(s.N, t.cols()), s.rowBlocks(t.rows()), s.Batch * t.splits}
	g.builtins = ", @builtin(subgroup_id) sg: u32"
	groups := g.main([2]int{t.threads(), 1}, tiles, l, false)
	g.line("let lt = l.x;")
	g.line("let b = tz / %du; let part = tz %% %du;", t.splits, t.splits)
	if s.Grouping == graph.GroupedSums {
		g.sumRange()
	} else {
		g.line("let begin = part * %du; let end = min(begin + %du, %du);", t.splitDepth(s), t.splitDepth(s), s.K)
	}
	g.rowBlock()
	for i := range t.m {
		for j := range t.n {
			g.line("var c%d_%d = %s();", i, j, t.size.WGSL("C"))
		}
	}
	a.addresses(g, t.threads(), fmt.Sprintf("sg / %du * %du", t.right, t.m*t.size.M))
	b.addresses(g, t.threads(), fmt.Sprintf("sg %% %du * %du", t.right, t.n*t.size.N))
	t.loop(g, a, b)
	t.finish(g)
	return g.pass([3]int{t.threads(), 1, 1}, groups, t.memory(s)+s.blockMemory())
}

// loop emits the loop along k.
func (t cooperative) loop(g *source, a, b slice) {
	load := func(k0 string) { a.load(g, t.threads(), k0); b.load(g, t.threads(), k0) }
	store := func(at string) { a.store(g, t.threads(), at); b.store(g, t.threads(), at) }
	load("begin")
	if !t.double {
		g.line("for (var k0 = begin; k0 < end; k0 += %du) {\nworkgroupBarrier();", t.depth())
		store("0u")
		g.line("workgroupBarrier();\nlet next = k0 + %du;\nif (next < end) {", t.depth())
		load("next")
		g.line("}")
		t.multiply(g, a, b, "0u")
		g.line("}")
		return
	}
	store("0u")
	g.line("var at = 0u;\nfor (var k0 = begin; k0 < end; k0 += %du) {\nworkgroupBarrier();", t.depth())
	g.line("let next = k0 + %du;\nif (next < end) {", t.depth())
	load("next")
	g.line("}")
	t.multiply(g, a, b, "at")
	g.line("at = %du - at;\nif (next < end) {", a.memory()+b.memory())
	store("at")
	g.line("}\n}")
}

// multiply emits the products of one slice. at is the index of its first vec4 in workgroup memory. The indices of
// pointers and the strides are variables because naga requires it.
func (t cooperative) multiply(g *source, a, b slice, at string) {
	for k := range t.k {
		for j := range t.n {
			b.matrix(g, t.size, k, j, at)
		}
		for i := range t.m {
			a.matrix(g, t.size, k, i, at)
			for j := range t.n {
				g.line("c%d_%d = coopMultiplyAdd(a%d_%d, b%d_%d, c%d_%d);", i, j, k, i, k, j, i, j)
			}
		}
	}
}

// finish emits the stores. Without an epilogue a tile that lies inside C is stored matrix by matrix. Other tiles go
// through workgroup memory, strip by strip, where each element has a known index.
func (t cooperative) finish(g *source) {
	s := g.spec
	base := fmt.Sprintf("b * %du", s.M*s.N)
	if t.splits > 1 {
		base += fmt.Sprintf(" + part * %du", s.splitSize())
	}
	g.line("let base = %s;", base)
	direct := s.Declare == nil && s.N%4 == 0 && s.M >= t.rows() && s.N >= t.cols()
	inside := s.M%t.rows() == 0 && s.N%t.cols() == 0 && s.Grouping != graph.GroupedRows
	if direct && !inside {
		past := fmt.Sprintf("(ty + 1u) * %du", t.rows())
		if s.Grouping == graph.GroupedRows {
			past = fmt.Sprintf("first + %du", t.rows())
		}
		g.line("if (%s <= %s && (tx + 1u) * %du <= %du) {", past, s.pastRow(), t.cols(), s.N)
	}
	if direct {
		t.storeMatrices(g)
	}
	if direct && !inside {
		g.line("} else {")
	}
	if !direct || !inside {
		t.storeStrips(g)
	}
	if direct && !inside {
		g.line("}")
	}
}

func (t cooperative) storeMatrices(g *source) {
	g.line("let across = %du;", g.spec.N/4)
	g.line("let corner = base / 4u + (%s + sg / %du * %du) * across + tx * %du + sg %% %du * %du;",
		g.spec.firstRow(t.rows()), t.right, t.m*t.size.M, t.cols()/4, t.right, t.n*t.size.N/4)
	for i := range t.m {
		for j := range t.n {
			g.line("{ let o = corner + %du * across + %du; coopStoreT(c%d_%d, &mm_c[o], across); }", i*t.size.M, j*t.size.N/4, i, j)
		}
	}
}

// storeStrips emits, for each row of the subgroups' matrices, the stores of the matrices to workgroup memory and then
// the stores of their elements to C with the epilogue, which all invocations share.
func (t cooperative) storeStrips(g *source) {
	s := g.spec
	g.line("let width = %du;", t.stripStride())
	g.line("let strip = sg / %du * %du + sg %% %du * %du;", t.right, t.size.M*t.stripStride(), t.right, t.n*t.size.N/4)
	for row := range t.m {
		g.line("workgroupBarrier();")
		for j := range t.n {
			g.line("{ let o = strip + %du; coopStoreT(c%d_%d, &stage[o], width); }", j*t.size.N/4, row, j)
		}
		g.line("workgroupBarrier();")
		g.line("for (var e = lt; e < %du; e += %du) {", t.down*t.size.M*t.cols()/4, t.threads())
		g.line("let r = e / %du; let x = e %% %du; let v = stage[r * width + x];", t.cols()/4, t.cols()/4)
		g.line("let i = %s + r / %du * %du + r %% %du + %du; let j = tx * %du + x * 4u;",
			s.firstRow(t.rows()), t.size.M, t.m*t.size.M, t.size.M, row*t.size.M, t.cols())
		g.line("if (i < %s) {", s.pastRow())
		if s.N%4 == 0 {
			g.line("if (j < %du) { mm_c[(base + i * %du + j) / 4u] = %s; }", s.N, s.N, g.quadValue("v"))
		} else {
			for q := range 4 {
				v := g.value(fmt.Sprintf("v.%c", "xyzw"[q]), "i", fmt.Sprintf("j + %du", q))
				g.line("if (j + %du < %du) { mm_c[base + i * %du + j + %du] = %s; }", q, s.N, s.N, q, v)
			}
		}
		g.line("}\n}")
	}
}

// newSource returns a source that holds the declarations of the bindings and helpers.
func (t cooperative) newSource(s Spec, a, b slice) *source {
	g := &source{spec: s, directives: t.size.Directives()}
	g.c = array{"mm_c", "mm_c", s.TypeC, s.N%4 == 0}
	g.arrays = []Array{{a.array, a.wgslType()}, {b.array, b.wgslType()}, {g.c.memory, g.c.typ()}}
	if a.array == b.array {
		g.arrays = slices.Delete(g.arrays, 1, 2)
	}
	g.groups()
	if a.alignment() != wide || b.alignment() != wide || a.alongK && s.K%8 != 0 {
		g.line(helpers)
	}
	if s.Declare != nil {
		a.declareAt(g)
		b.declareAt(g)
		g.declareAt(g.c)
	}
	g.endHead()
	return g
}
