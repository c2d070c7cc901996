package matmul

import "fmt"

// tile is the classic kernel for GPUs: a workgroup computes rows × cols of C from slices of depth k's held in
// workgroup memory, each invocation a block of registers made of vec4 columns. With splits > 1 the k's are cut
// into that many parts, summed apart into scratch, and a second pass adds them in order.
type tile struct {
	rows, cols, depth int
	wx, wy            int // invocations; an invocation holds rows/wy × cols/wx, both multiples of four
	splits            int
}

var tileShapes = [...]tile{
	{rows: 32, cols: 32, depth: 16, wx: 8, wy: 8},
	{rows: 64, cols: 64, depth: 16, wx: 16, wy: 16},
	{rows: 64, cols: 64, depth: 16, wx: 8, wy: 8},
	{rows: 128, cols: 64, depth: 16, wx: 8, wy: 16},
	{rows: 128, cols: 128, depth: 8, wx: 16, wy: 16},
	{rows: 128, cols: 128, depth: 16, wx: 16, wy: 16},
}

// fillTiles is how many workgroups it takes to keep a large GPU busy.
const fillTiles = 256

func tileCandidates(s Spec, l Limits) []Kernel {
	var ks []Kernel
	for _, t := range tileShapes {
		if t.wx*t.wy > l.MaxInvocations || t.wx > l.MaxWorkgroupX || t.wy > l.MaxWorkgroupY || t.memory() > l.MaxWorkgroupMemory {
			continue
		}
		// A tile most of which lies outside is no candidate; the smallest stays.
		if t.rows > 32 && (t.rows >= 2*s.M || t.cols >= 2*s.N) {
			continue
		}
		t.splits = 1
		ks = append(ks, t.kernel(s, l))
		if splits := min(fillTiles/t.count(s), s.K/(8*t.depth), 32); splits > 1 {
			t.splits = splits
			ks = append(ks, t.kernel(s, l))
		}
	}
	return ks
}

func (t tile) count(s Spec) int { return s.Batch * ceilDiv(s.M, t.rows) * ceilDiv(s.N, t.cols) }

// stride is the vec4s of a row of the slice of n columns: one more than needed, against bank conflicts.
func stride(n int) int { return n/4 + 1 }

func (t tile) memory() int { return 16 * t.depth * (stride(t.rows) + stride(t.cols)) }

// cost counts multiplications and loads of a wave of tiles; small blocks of registers load more an operation.
func (t tile) cost(s Spec) float64 {
	rm, rn := float64(t.rows/t.wy), float64(t.cols/t.wx)
	perK := float64(t.rows*t.cols) * (1 + 1/rm + 1/rn)
	waves := float64(ceilDiv(t.count(s)*t.splits, fillTiles))
	cost := waves * perK * float64(ceilDiv(s.K, t.splits)+64)
	if t.splits > 1 {
		cost += 5e5 + float64(s.Batch*s.M*s.N*t.splits)/fillTiles
	}
	return cost
}

func (t tile) kernel(s Spec, l Limits) Kernel {
	k := Kernel{Name: fmt.Sprintf("tile %dx%dx%d/%d", t.rows, t.cols, t.depth, t.wx*t.wy), Cost: t.cost(s)}
	if t.splits == 1 {
		k.Passes = []Pass{t.pass(s, l)}
		return k
	}
	k.Name += fmt.Sprintf(" split %d", t.splits)
	part := roundUp(s.Batch*s.M*s.N, 64) // elements; keeps the halves of the scratch aligned
	k.Scratch = 4 * part * t.splits
	first := t.pass(s, l)
	first.Bindings[2] = Binding{Operand: Scratch, Size: k.Scratch}
	k.Passes = []Pass{first, reduction(s, l, part, t.splits)}
	return k
}

// sums is the Spec of what comes before the last pass: sums as they are, in f32. That pass rounds once, where the result is of halves.
func (s Spec) sums() Spec {
	s.Epilogue, s.Declarations, s.TypeC = nil, "", F32
	return s
}

func (t tile) pass(s Spec, l Limits) Pass {
	out, depthOfPart := s, s.K
	if t.splits > 1 {
		out = s.sums()
		depthOfPart = roundUp(ceilDiv(s.K, t.splits), t.depth)
	}
	quadsA, quadsB := s.quadsA(), s.quadsB()
	if s.Shared && quadsA != quadsB {
		quadsA, quadsB = false, false
	}
	g := newSource(out, quadsA, quadsB, s.N%4 == 0)
	g.line("var<workgroup> sa: array<vec4<f32>, %d>;", t.depth*stride(t.rows))
	g.line("var<workgroup> sb: array<vec4<f32>, %d>;", t.depth*stride(t.cols))
	tiles := [3]int{ceilDiv(s.N, t.cols), ceilDiv(s.M, t.rows), s.Batch * t.splits}
	groups := g.main([2]int{t.wx, t.wy}, tiles, l, false)
	g.line("let b = tz / %du; let part = tz %% %du; let lt = l.y * %du + l.x;", t.splits, t.splits, t.wx)
	g.line("let end = min(%du, (part + 1u) * %du);", s.K, depthOfPart)
	for i := range t.rows / t.wy {
		for j := range t.cols / t.wx / 4 {
			g.line("var s%d_%d = vec4<f32>();", i, j)
		}
	}
	g.line("for (var k0 = part * %du; k0 < end; k0 += %du) {", depthOfPart, t.depth)
	g.line("workgroupBarrier();")
	t.fill(g, g.a, s.TransA, t.rows, s.M, s.K, s.BatchStrideA, "ty")
	t.fill(g, g.b, !s.TransB, t.cols, s.N, s.K, s.BatchStrideB, "tx")
	g.line("workgroupBarrier();")
	t.multiply(g)
	g.line("}")
	t.stores(g)
	return g.pass([3]int{t.wx, t.wy, 1}, groups, t.memory())
}

// fill emits the copy of a slice to workgroup memory, transposed to [depth][n/4] if need be. Neighbouring
// invocations read neighbouring elements. What lies beyond k is zero; beyond n it repeats the last.
func (t tile) fill(g *source, from array, contiguous bool, n, size, k, batchStride int, place string) {
	count, threads := t.depth*n/4, t.wx*t.wy
	for done := 0; done < count; done += threads {
		guard := "{"
		if done+threads > count {
			guard = fmt.Sprintf("if (lt + %du < %du) {", done, count)
		}
		g.line("%s let q = lt + %du;", guard, done)
		if contiguous {
			g.line("let x = q %% %du; let d = q / %du;", n/4, n/4)
		} else {
			g.line("let x = q / %du; let d = q %% %du;", t.depth, t.depth)
		}
		g.line("let i = %s * %du + x * 4u; let kk = min(k0 + d, %du);", place, n, k-1)
		if from.quads {
			g.line("let v = %s;", from.read(fmt.Sprintf("(b * %du + kk * %du + min(i, %du)) / 4u", batchStride, size, size-4)))
		} else {
			t.gather(g, from, contiguous, size, k, batchStride)
		}
		g.line("s%s[d * %du + x] = select(vec4<f32>(), v, k0 + d < end); }", from.name[len("mm_"):], stride(n))
	}
}

func (t tile) gather(g *source, from array, contiguous bool, size, k, batchStride int) {
	for q := range 4 {
		at := fmt.Sprintf("b * %du + min(i + %du, %du) * %du + kk", batchStride, q, size-1, k)
		if contiguous {
			at = fmt.Sprintf("b * %du + kk * %du + min(i + %du, %du)", batchStride, size, q, size-1)
		}
		g.line("let v%d = %s;", q, from.read(at))
	}
	g.line("let v = vec4<f32>(v0, v1, v2, v3);")
}

func (t tile) multiply(g *source) {
	g.line("for (var d = 0u; d < %du; d++) {", t.depth)
	for j := range t.cols / t.wx / 4 {
		g.line("let b%d = sb[d * %du + l.x + %du];", j, stride(t.cols), j*t.wx)
	}
	for i := range t.rows / t.wy {
		if i%4 == 0 {
			g.line("let a%d = sa[d * %du + l.y + %du];", i, stride(t.rows), i/4*t.wy)
		}
		for j := range t.cols / t.wx / 4 {
			g.line("s%d_%d = fma(vec4<f32>(a%d.%c), b%d, s%d_%d);", i, j, i/4*4, "xyzw"[i%4], j, i, j)
		}
	}
	g.line("}")
}

// stores emits the stores: of C with the epilogue, or of a part of the sum to scratch.
func (t tile) stores(g *source) {
	s := g.spec
	if t.splits > 1 {
		g.line("let base = part * %du + b * %du;", roundUp(s.Batch*s.M*s.N, 64), s.M*s.N)
	} else {
		g.line("let base = b * %du;", s.M*s.N)
	}
	for i := range t.rows / t.wy {
		row := fmt.Sprintf("ty * %du + (%du + l.y) * 4u + %du", t.rows, i/4*t.wy, i%4)
		g.line("{ let i = %s; if (i < %du) {", row, s.M)
		for j := range t.cols / t.wx / 4 {
			acc := fmt.Sprintf("s%d_%d", i, j)
			g.line("{ let j = tx * %du + (%du + l.x) * 4u;", t.cols, j*t.wx)
			if s.N%4 == 0 {
				g.line("if (j < %du) { mm_c[(base + i * %du + j) / 4u] = %s; }", s.N, s.N, g.quadValue(acc, "b", "i", "j"))
			} else {
				for q := range 4 {
					v := g.value(fmt.Sprintf("%s.%c", acc, "xyzw"[q]), "b", "i", fmt.Sprintf("j + %du", q))
					g.line("if (j + %du < %du) { mm_c[base + i * %du + j + %du] = %s; }", q, s.N, s.N, q, v)
				}
			}
			g.line("}")
		}
		g.line("} }")
	}
}

// reduction adds the parts in order. It binds the scratch in two pieces, for A and B, so that C stays binding 2; of one part the second piece
// lies behind it, and nothing is read of it.
func reduction(s Spec, l Limits, part, splits int) Pass {
	wx := min(64, l.MaxInvocations, l.MaxWorkgroupX)
	quads, at := s.TypeC.Half(), 1 // elements that an invocation computes: halves are stored in whole words
	j, zero := fmt.Sprintf("id %% %du", s.N), "0.0"
	if quads {
		at, j, zero = 4, fmt.Sprintf("id %% %du * 4u", s.N/4), "vec4<f32>()"
	}
	total, half := s.Batch*s.M*s.N/at, max(splits/2, 1)
	s.TypeA, s.TypeB = F32, F32
	g := newSource(s, quads, quads, quads)
	groups := g.main([2]int{wx, 1}, [3]int{ceilDiv(total, wx), 1, 1}, l, true)
	g.line("let id = tx * %du + l.x;", wx)
	g.line("if (id >= %du) { return; }", total)
	g.line("let b = id / %du; let i = id / %du %% %du; let j = %s;", s.M*s.N/at, s.N/at, s.M, j)
	g.line("var s = %s;", zero)
	g.line("for (var p = 0u; p < %du; p++) { s += mm_a[p * %du + id]; }", half, part/at)
	if splits > 1 {
		g.line("for (var p = 0u; p < %du; p++) { s += mm_b[p * %du + id]; }", splits-half, part/at)
	}
	if quads {
		g.line("mm_c[id] = %s;", g.quadValue("s", "b", "i", "j"))
	} else {
		g.line("mm_c[id] = %s;", g.value("s", "b", "i", "j"))
	}
	p := g.pass([3]int{wx, 1, 1}, groups, 0)
	cut := 4 * part * half
	p.Bindings[0] = Binding{Operand: Scratch, Size: cut}
	p.Bindings[1] = Binding{Operand: Scratch, Offset: cut, Size: max(4*part*splits-cut, 256)}
	return p
}
