package matmul

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// slice is the slice of an operand of 16-bit floats that a workgroup of the cooperative kernel holds in workgroup
// memory at a time. It consists of runs, contiguous ranges of the operand. If alongK is set a run is depth elements of
// a row of A or a column of B; otherwise it is tile elements with the same k. Invocations copy sixteen bytes of a run
// at a time: eight 16-bit floats, a vec4 of words. In workgroup memory the slice consists of such runs, too, or, if
// transposed is set, of runs along k although the operand's are not: invocations then copy two vec4s with adjacent k's
// at a time.
type slice struct {
	name, first string // "a" or "b"; the tile's first row or column
	array       string // the binding
	tile, depth int    // rows or columns of a tile; k's of a slice
	size, k     int    // rows or columns of the operand; its k's
	alongK      bool   // runs are along k
	transposed  bool   // runs are along k in workgroup memory alone
	batch       int
	item        string // the variable that numbers the operand's matrix
	batchStride int
	inside      bool   // no row or column of a tile lies outside the operand
	wholeSteps  bool   // no k of a slice lies outside the range
	end         string // of the range of k
	offset      int    // of the slice in workgroup memory, in vec4s
}

// alignment is the alignment of an operand's vec4s in memory.
type alignment int

const (
	wide alignment = iota // to sixteen bytes
	even                  // to a word
	odd                   // to a 16-bit float
)

// pitch is the distance between two runs in the operand, in elements. width is the number of elements of a run in the
// slice, and runs is the number of runs.
func (x slice) pitch() int {
	if x.alongK {
		return x.k
	}
	return x.size
}

func (x slice) width() int {
	if x.alongK {
		return x.depth
	}
	return x.tile
}

func (x slice) runs() int { return x.tile * x.depth / x.width() }

// vec4s is the number of vec4s that the workgroup copies.
func (x slice) vec4s() int { return x.tile * x.depth / 8 }

// copies is the number of vec4s that an invocation copies.
func (x slice) copies(threads int) int {
	if x.transposed {
		return 2 * ceilDiv(x.vec4s()/2, threads)
	}
	return x.vec4s() / threads
}

// stored is the slice as it lies in workgroup memory.
func (x slice) stored() slice {
	x.alongK = x.alongK || x.transposed
	return x
}

// stride is the distance between two runs in workgroup memory, in vec4s. It is one more than needed, which avoids bank
// conflicts.
func (x slice) stride() int { return x.stored().width()/8 + 1 }

// memory is the workgroup memory of the slice in vec4s.
func (x slice) memory() int { return x.stored().runs() * x.stride() }

func (x slice) alignment() alignment {
	switch {
	case x.pitch()%8 == 0 && x.batchStride%8 == 0:
		return wide
	case x.pitch()%2 == 0 && x.batchStride%2 == 0:
		return even
	}
	return odd
}

// elements is the number of 16-bit floats of the operand.
func (x slice) elements() int { return (x.batch-1)*x.batchStride + x.size*x.k }

func (x slice) wgslType() string {
	if x.alignment() == wide {
		return "vec4<u32>"
	}
	return "u32"
}

// helpers are WGSL functions for vec4s that are not aligned to sixteen bytes. x and last hold ten 16-bit floats:
// mm_shift returns the first eight or, if odd, those from the second on. mm_keep clears all but the first left
// elements.
const helpers = `fn mm_shift(x: vec4<u32>, last: u32, odd: bool) -> vec4<u32> {
let y = vec4<u32>(x.y, x.z, x.w, last);
return select(x, (x >> vec4<u32>(16u)) | (y << vec4<u32>(16u)), odd);
}
fn mm_keep(x: vec4<u32>, left: i32) -> vec4<u32> {
let n = clamp(vec4<i32>(left) - vec4<i32>(0, 2, 4, 6), vec4<i32>(0), vec4<i32>(2));
return x & select(select(vec4<u32>(0u), vec4<u32>(0xffffu), n == vec4<i32>(1)), vec4<u32>(0xffffffffu), n == vec4<i32>(2));
}`

// addresses emits the variables that do not depend on k. For each vec4 that an invocation copies these are its run, its
// position in the run, and its index in the operand at k = 0. For each subgroup it is the position of its matrices in
// the slice; first is the subgroup's first row or column in the tile.
func (x slice) addresses(g *source, threads int, first string) {
	n, perRun := x.name, x.width()/8
	for q := range x.copies(threads) {
		if x.transposed {
			x.pairAt(g, threads, q)
		} else if threads%perRun == 0 {
			g.line("let %sl%d = lt / %du + %du; let %sc%d = lt %% %du;", n, q, perRun, q*threads/perRun, n, q, perRun)
		} else {
			g.line("let %sl%d = (lt + %du) / %du; let %sc%d = (lt + %du) %% %du;", n, q, q*threads, perRun, n, q, q*threads, perRun)
		}
		at := fmt.Sprintf("%s * %du + %sl%d * %du + %s + %sc%d * 8u", x.item, x.batchStride, n, q, x.size, x.first, n, q)
		if x.alongK {
			row := fmt.Sprintf("%s + %sl%d", x.first, n, q)
			if !x.inside {
				row = fmt.Sprintf("min(%s, %du)", row, x.size-1)
			}
			at = fmt.Sprintf("%s * %du + (%s) * %du + %sc%d * 8u", x.item, x.batchStride, row, x.k, n, q)
		}
		if x.alignment() == wide {
			at = "(" + at + ") / 8u"
		}
		g.line("let %sp%d = %s;\nvar %sr%d = vec4<u32>();", n, q, at, n, q)
	}
	if x.alongK || x.transposed {
		first = fmt.Sprintf("(%s) * %du", first, x.stride())
	} else {
		first = fmt.Sprintf("(%s) / 8u", first)
	}
	g.line("let %sm = %s + %du; let %sw = %du;", n, first, x.offset, n, x.stride())
}

// pairAt emits the run of the q-th vec4 of a slice that is transposed, and its position in the run. Two in succession
// have adjacent k's. Invocations with successive numbers share few runs, so that they read near one another, and store
// to different banks. Where a workgroup has more invocations than pairs, some repeat others' loads.
func (x slice) pairAt(g *source, threads, q int) {
	pairs, across := x.depth/2, min(4, x.tile/8)
	g.line("let %st%d = (lt + %du) %% %du;", x.name, q, q/2*threads, x.vec4s()/2)
	g.line("let %[1]sl%[2]d = %[1]st%[2]d / %[3]du %% %[4]du * 2u + %[5]du; let %[1]sc%[2]d = %[1]st%[2]d / %[6]du * %[3]du + %[1]st%[2]d %% %[3]du;",
		x.name, q, across, pairs, q%2, across*pairs)
}

// load emits the loads of the slice that begins at k0 into registers. Elements beyond k are zero. Elements beyond the
// rows or columns are arbitrary.
func (x slice) load(g *source, threads int, k0 string) {
	for q := range x.copies(threads) {
		v := x.read(q, k0)
		left := fmt.Sprintf("%s + %sl%d", k0, x.name, q) // the first k of the vec4
		if x.alongK {
			left = fmt.Sprintf("%s + %sc%d * 8u", k0, x.name, q)
		}
		switch {
		case x.wholeSteps:
		case x.alongK && x.k%8 != 0:
			v = fmt.Sprintf("mm_keep(%s, %d - i32(%s))", v, x.k, left)
		default:
			v = fmt.Sprintf("select(vec4<u32>(), %s, %s < %s)", v, left, x.end)
		}
		g.line("%sr%d = %s;", x.name, q, v)
	}
}

// read is the expression of the q-th vec4 that an invocation copies of the slice that begins at k0. Its indices are
// clamped to the operand.
func (x slice) read(q int, k0 string) string {
	at := fmt.Sprintf("%sp%d + %s", x.name, q, k0)
	if !x.alongK {
		at += fmt.Sprintf(" * %du", x.size)
	}
	if x.alignment() == wide {
		at = fmt.Sprintf("%sp%d + %s / 8u", x.name, q, k0)
		if !x.alongK {
			at = fmt.Sprintf("%sp%d + %s * %du", x.name, q, k0, x.size/8)
		}
		if !x.wholeSteps || !x.alongK && !x.inside {
			at = fmt.Sprintf("min(%s, %du)", at, x.elements()/8-1)
		}
		return fmt.Sprintf("%s[%s]", x.array, at)
	}
	word := func(i int) string {
		return fmt.Sprintf("%s[min((%s) / 2u + %du, %du)]", x.array, at, i, ceilDiv(x.elements(), 2)-1)
	}
	v := fmt.Sprintf("vec4<u32>(%s, %s, %s, %s)", word(0), word(1), word(2), word(3))
	if x.alignment() == odd {
		v = fmt.Sprintf("mm_shift(%s, %s, ((%s) & 1u) == 1u)", v, word(4), at)
	}
	return v
}

// store emits the stores of the registers to workgroup memory. at is the index of the slices' first vec4.
func (x slice) store(g *source, threads int, at string) {
	if x.transposed {
		x.storeTransposed(g, threads, at)
		return
	}
	for q := range x.copies(threads) {
		g.line("stage[%s + %sl%d * %du + %sc%d + %du] = bitcast<vec4<f32>>(%sr%d);", at, x.name, q, x.stride(), x.name, q, x.offset,
			x.name, q)
	}
}

// storeTransposed emits the stores of pairs of vec4s with adjacent k's: eight words, each to another run.
func (x slice) storeTransposed(g *source, threads int, at string) {
	g.line("if (lt < %du) {", x.vec4s()/2)
	for q := 0; q < x.copies(threads); q += 2 {
		g.line("{ let o = %[1]s + %[2]sc%[3]d * %[4]du + %[2]sl%[3]d / 8u + %[5]du; let w = %[2]sl%[3]d / 2u %% 4u;", at, x.name, q, 8*x.stride(),
			x.offset)
		for e := range 8 {
			first, second := fmt.Sprintf("%sr%d[%d]", x.name, q, e/2), fmt.Sprintf("%sr%d[%d]", x.name, q+1, e/2)
			word := fmt.Sprintf("(%s & 0xffffu) | (%s << 16u)", first, second)
			if e%2 == 1 {
				word = fmt.Sprintf("(%s >> 16u) | (%s & 0xffff0000u)", first, second)
			}
			g.line("stage[o + %du][w] = bitcast<f32>(%s);", e*x.stride(), word)
		}
		g.line("}")
	}
	g.line("}")
}

// matrix emits the load of the subgroup's matrix that is the i-th along rows or columns and the k-th along k.
func (x slice) matrix(g *source, size target.CooperativeMatrix, k, i int, at string) {
	x = x.stored()
	role, side := "A", size.M
	if x.name == "b" {
		role, side = "B", size.N
	}
	offset := k*size.K*x.stride() + i*side/8
	if x.alongK {
		offset = i*side*x.stride() + k*size.K/8
	}
	load := "coopLoad"
	if x.alongK == (role == "A") {
		load = "coopLoadT" // by rows
	}
	g.line("let %so%d_%d = %s + %sm + %du;", x.name, k, i, at, x.name, offset)
	g.line("let %s%d_%d = %s<%s>(&stage[%so%d_%d], %sw);", x.name, k, i, load, size.WGSL(role), x.name, k, i, x.name)
}

// declareAt defines the function with which the epilogue reads the bits of an element.
func (x slice) declareAt(g *source) {
	bits := graph.Float16At(x.array, graph.Var("at", 1<<32, 0)).String()
	if x.alignment() == wide {
		bits = fmt.Sprintf("(%s[at >> 3u][(at >> 1u) & 3u] >> ((at & 1u) * 16u)) & 65535u", x.array)
	}
	g.line("fn mm_at_%s(at: u32) -> u32 { return %s; }", x.name, bits)
}
