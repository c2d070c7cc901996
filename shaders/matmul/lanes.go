package matmul

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

// lanes is the kernel for software adapters. Mesa's llvmpipe runs 4 to 16 invocations as the lanes of a vector. It
// loads element by element, each with a bounds check and a branch, and spills values that are live for long. So the
// kernel uses no workgroup memory, handles one k in each iteration, and computes a tile of rows × 4·groups elements in
// each invocation. The lanes of a vector have different columns and the same rows, so one load of a row's element
// serves all lanes.
//
// With swap the kernel computes Cᵀ = BᵀAᵀ: its rows are columns of B, and its columns are rows of A.
type lanes struct {
	spec                Spec // the product that the kernel computes: transposed if swap is set
	swap                bool
	rows, groups, width int  // width: invocations of a workgroup
	packRows, packCols  bool // copy the operand to scratch first, laid out for loads of vec4
}

// lanesKept is the number of variants to return. Compiling and timing a further one takes longer than it saves.
const lanesKept = 3

// lanesVariants returns the kernels of least cost among all ways to read the operands.
func lanesVariants(s Spec, l target.Limits) []Kernel {
	var ks []Kernel
	for _, swap := range []bool{false, true} {
		if swap && s.TypeC.Float16() { // two invocations would store to one word
			continue
		}
		for _, packRows := range []bool{false, true} {
			for _, packCols := range []bool{false, true} {
				base := lanes{spec: s, swap: swap, packRows: packRows, packCols: packCols}
				if swap {
					base.spec = transposed(s)
				}
				// An f32 operand that can be loaded by vec4 already gains nothing from a copy.
				if packRows && base.spec.quadsA() && base.spec.TypeA == F32 || packCols && base.spec.quadsB() && base.spec.TypeB == F32 {
					continue
				}
				if best, ok := base.best(l); ok {
					ks = append(ks, best.kernel(s, l))
				}
			}
		}
	}
	byCost(ks)
	return ks[:min(len(ks), lanesKept)]
}

// transposed returns the Spec of Cᵀ = BᵀAᵀ, except for the layout of C and the epilogue.
func transposed(s Spec) Spec {
	s.M, s.N = s.N, s.M
	s.TransA, s.TransB = !s.TransB, !s.TransA
	s.TypeA, s.TypeB = s.TypeB, s.TypeA
	s.BatchStrideA, s.BatchStrideB = s.BatchStrideB, s.BatchStrideA
	return s
}

// best returns the tile of least cost. It reports false if no tile fits the device.
func (p lanes) best(l target.Limits) (lanes, bool) {
	best, least := p, math.Inf(1)
	for _, rows := range []int{1, 2, 4, 8} {
		if rows > 1 && rows/2 >= p.spec.M || p.quadRows() && rows < 4 {
			continue
		}
		for groups := 1; groups <= 3; groups++ {
			for _, width := range []int{8, 16, 32, 64} {
				if width > min(l.MaxInvocations, l.MaxWorkgroupSize[0]) {
					continue
				}
				p.rows, p.groups, p.width = rows, groups, width
				if c := p.cost(); c < least {
					best, least = p, c
				}
			}
		}
	}
	return best, !math.IsInf(least, 1)
}

func (p lanes) quadRows() bool { return p.packRows || p.spec.quadsA() }
func (p lanes) quadCols() bool { return p.packCols || p.spec.quadsB() }

// cost estimates the machine instructions for vectors of eight lanes, as counted in llvmpipe's code.
func (p lanes) cost() float64 {
	s := p.spec
	row, col := 12., 9*32. // a scalar uniform load; four scalar loads of eight lanes
	if p.quadRows() {
		row = 7
	}
	if p.quadCols() {
		col = 6 * 32
	}
	row, col = row+unpacking(s.TypeA, p.packRows), col+4*unpacking(s.TypeB, p.packCols)
	fma := 2.3
	if p.groups == 3 {
		fma = 3.2 // accumulators no longer stay in registers
	}
	r, g := float64(p.rows), float64(p.groups)
	iteration := row*r + col*g + fma*4*r*g + 25
	tiles := float64(ceilDiv(s.M, p.rows)) * float64(ceilDiv(ceilDiv(s.N, 4), p.width*p.groups)*p.width/8)
	cost := float64(s.Batch) * tiles * (iteration*float64(s.K) + 700 + 60*r*g)
	// The start of each workgroup and the dispatch of each pass cost time.
	cost += 300 * float64(s.Batch) * tiles * 8 / float64(p.width)
	const element, dispatch = 16, 2e5
	if p.packRows {
		cost += dispatch + element*float64(batches(s.Batch, s.BatchStrideA)*s.M*s.K)
	}
	if p.packCols {
		cost += dispatch + element*float64(batches(s.Batch, s.BatchStrideB)*s.N*s.K)
	}
	return cost
}

// unpacking is the cost of converting an element to f32 in each iteration.
func unpacking(t Element, packed bool) float64 {
	switch {
	case packed || t == F32:
		return 0
	case t == BF16:
		return 4
	}
	return 14
}

// batches is the number of distinct matrices of an operand: 1 if the whole batch uses the same one.
func batches(batch, stride int) int {
	if stride == 0 {
		return 1
	}
	return batch
}

func (p lanes) kernel(s Spec, l target.Limits) Kernel {
	k := Kernel{Name: fmt.Sprintf("lanes %dx%d/%d", p.rows, 4*p.groups, p.width), Cost: p.cost()}
	rows, cols := Binding{Operand: A}, Binding{Operand: B}
	if p.swap {
		k.Name += " swapped"
		rows, cols = cols, rows
	}
	seen := p.spec
	if p.packRows {
		k.Name += " rows packed"
		pass, size := packed(rows.Operand, seen.TypeA, seen.Batch, seen.M, seen.K, seen.BatchStrideA, seen.TransA, l)
		rows = Binding{Operand: Scratch, Size: size}
		pass.Bindings[1] = rows
		k.Passes, k.Scratch = append(k.Passes, pass), size
		seen.TypeA, seen.TransA, seen.BatchStrideA = F32, true, min(seen.BatchStrideA, 1)*roundUp(seen.M, 4)*seen.K
	}
	if p.packCols {
		k.Name += " columns packed"
		pass, size := packed(cols.Operand, seen.TypeB, seen.Batch, seen.N, seen.K, seen.BatchStrideB, !seen.TransB, l)
		cols = Binding{Operand: Scratch, Offset: roundUp(k.Scratch, 256), Size: size}
		pass.Bindings[1] = cols
		k.Passes, k.Scratch = append(k.Passes, pass), cols.Offset+size
		seen.TypeB, seen.TransB, seen.BatchStrideB = F32, false, min(seen.BatchStrideB, 1)*roundUp(seen.N, 4)*seen.K
	}
	p.spec = seen
	pass := p.pass(s, l)
	if !s.Shared || p.packRows || p.packCols {
		pass.Bindings[0], pass.Bindings[1] = rows, cols
	}
	k.Passes = append(k.Passes, pass)
	return k
}

// pass returns the main pass; s is the caller's Spec.
func (p lanes) pass(s Spec, l target.Limits) Pass {
	quadC := !p.swap && s.N%4 == 0
	s.TypeA, s.TypeB = p.spec.TypeA, p.spec.TypeB // as they are bound
	s.Shared = s.Shared && !p.packRows && !p.packCols
	g := newSource(s, p.quadRows(), p.quadCols(), quadC)
	quads := ceilDiv(p.spec.N, 4)
	tiles := [3]int{ceilDiv(quads, p.width*p.groups), ceilDiv(p.spec.M, p.rows), s.Batch}
	groups := g.main([2]int{p.width, 1}, tiles, l, false)
	g.line("let b = tz; let r = ty * %du; let c = tx * %du + l.x;", p.rows, p.width*p.groups)
	p.addresses(g, quads)
	for i := range p.rows {
		for j := range p.groups {
			g.line("var s%d_%d = vec4<f32>();", i, j)
		}
	}
	g.line("for (var k = 0u; k < %du; k++) {", p.spec.K)
	p.iteration(g)
	g.line("}")
	p.stores(g, quadC, quads)
	return g.pass([3]int{p.width, 1, 1}, groups, 0)
}

// addresses emits the variables that do not depend on k: the indices of rows and columns. They are clamped, so that
// loads need no branch.
func (p lanes) addresses(g *source, quads int) {
	s := p.spec
	for j := range p.groups {
		g.line("let c%d = min(c + %du, %du);", j, j*p.width, quads-1)
		if !p.quadCols() {
			for q := range 4 {
				g.line("let c%d_%d = min(c%d * 4u + %du, %du);", j, q, j, q, s.N-1)
			}
		}
	}
	for i := range p.rows {
		switch {
		case p.quadRows() && i%4 == 0:
			g.line("let r%d = min(ty * %du + %du, %du);", i, p.rows/4, i/4, ceilDiv(s.M, 4)-1)
		case !p.quadRows() && s.M%p.rows == 0:
			g.line("let r%d = r + %du;", i, i)
		case !p.quadRows():
			g.line("let r%d = min(r + %du, %du);", i, i, s.M-1)
		}
	}
}

// iteration emits the loads and products for one k. It loads each row just before its use, since values that are loaded
// early are spilled.
func (p lanes) iteration(g *source) {
	s := p.spec
	for j := range p.groups {
		if p.quadCols() {
			g.line("let b%d = %s;", j, g.b.read(fmt.Sprintf("b * %du + k * %du + c%d", s.BatchStrideB/4, ceilDiv(s.N, 4), j)))
			continue
		}
		var at [4]any
		for q := range at {
			at[q] = g.b.read(s.indexB(fmt.Sprintf("c%d_%d", j, q)))
		}
		g.line(fmt.Sprintf("let b%d = vec4<f32>(%%s, %%s, %%s, %%s);", j), at[:]...)
	}
	for i := range p.rows {
		a := fmt.Sprintf("a%d", i)
		switch {
		case !p.quadRows():
			g.line("let a%d = %s;", i, g.a.read(s.indexA(fmt.Sprintf("r%d", i))))
		case i%4 == 0:
			g.line("let a%d = %s;", i, g.a.read(fmt.Sprintf("b * %du + k * %du + r%d", s.BatchStrideA/4, ceilDiv(s.M, 4), i)))
		}
		if p.quadRows() {
			a = fmt.Sprintf("a%d.%c", i/4*4, "xyzw"[i%4])
		}
		for j := range p.groups {
			g.line("s%d_%d += %s * b%d;", i, j, a, j)
		}
	}
}

// stores emits the stores as one loop over the tile. Unrolled stores and epilogues would take longer to compile than
// all other code, so the loop's bound is not constant and the compiler cannot unroll it.
func (p lanes) stores(g *source, quadC bool, quads int) {
	s := g.spec
	var sums []string
	for i := range p.rows {
		for j := range p.groups {
			sums = append(sums, fmt.Sprintf("s%d_%d", i, j))
		}
	}
	g.line("var sums = array<vec4<f32>, %d>(%s);", len(sums), strings.Join(sums, ", "))
	g.line("let count = min(%du, %du - r) * %du;", p.rows, p.spec.M, p.groups)
	g.line("for (var q = 0u; q < count; q++) {")
	g.line("let i = r + q / %du; let quad = c + q %% %du * %du; let j = quad * 4u; let acc = sums[q];", p.groups, p.groups, p.width)
	if quads%(p.width*p.groups) != 0 {
		g.line("if (quad < %du) {", quads)
	} else {
		g.line("{")
	}
	if quadC {
		g.line("mm_c[((b * %du + i) * %du + j) / 4u] = %s;", s.M, s.N, g.quadValue("acc"))
	} else {
		p.scalarStores(g, "acc")
	}
	g.line("} }")
}

// scalarStores emits one store for each of four columns. It is for columns that are not adjacent in C or that may lie
// outside C.
func (p lanes) scalarStores(g *source, acc string) {
	s := g.spec
	for q := range 4 {
		i, j := "i", fmt.Sprintf("(j + %du)", q)
		store := ""
		if p.spec.N%4 != 0 {
			store = fmt.Sprintf("if (%s < %du) ", j, p.spec.N)
		}
		if p.swap {
			i, j = j, i
		}
		v := g.value(fmt.Sprintf("%s.%c", acc, "xyzw"[q]), i, j)
		g.line("%s{ mm_c[(b * %du + %s) * %du + %s] = %s; }", store, s.M, i, s.N, j, v)
	}
}

// packed returns the pass that copies an operand to scratch as f32 [batch, k, x], where x is padded with zeros to a
// multiple of four, and the size of the copy in bytes. xContiguous reports whether elements that are adjacent along x
// are adjacent in the operand.
func packed(from Operand, element Element, batch, x, k, stride int, xContiguous bool, l target.Limits) (Pass, int) {
	batch = batches(batch, stride)
	quads := ceilDiv(x, 4)
	total := batch * k * quads
	width := min(64, l.MaxInvocations, l.MaxWorkgroupSize[0])
	g, src := &source{}, array{name: "src", memory: "src", element: element}
	g.bindOperand(src)
	g.arrays = append(g.arrays, Array{"dst", "vec4<f32>"})
	groups := g.main([2]int{width, 1}, [3]int{ceilDiv(total, width), 1, 1}, l, true)
	g.line("let id = tx * %du + l.x;", width)
	g.line("if (id >= %du) { return; }", total)
	g.line("let b = id / %du; let k = id / %du %% %du; let x = id %% %du * 4u;", k*quads, quads, k, quads)
	g.line("var v = vec4<f32>();")
	for q := range 4 {
		at := fmt.Sprintf("b * %du + (x + %du) * %du + k", stride, q, k)
		if xContiguous {
			at = fmt.Sprintf("b * %du + k * %du + x + %du", stride, x, q)
		}
		guard := ""
		if x%4 != 0 && q > 0 {
			guard = fmt.Sprintf("if (x + %du < %du) ", q, x)
		}
		g.line("%s{ v.%c = %s; }", guard, "xyzw"[q], src.read(at))
	}
	g.line("dst[id] = v;\n}")
	return Pass{
		Code: g.String(), Arrays: g.arrays, Bindings: []Binding{{Operand: from}, {}},
		Workgroup: [3]int{width, 1, 1}, Groups: groups,
	}, total * 16
}
