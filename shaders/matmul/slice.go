package matmul

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// slice is what a workgroup of the cooperative kernel holds of an operand of 16-bit floats at a time: lines as they lie
// in memory, of rows of A or columns of B along k, or of k's along them. Its unit is the chunk: eight 16-bit floats of
// a line, sixteen bytes, a vec4 of words.
type slice struct {
	name, place string // "a" or "b"; the tile's place along the operand's rows or columns
	tile, depth int    // rows or columns of a tile; k's
	size, k     int    // of the operand
	alongK      bool   // lines run along k
	batch       int
	batchStride int
	from        int // where it lies in workgroup memory, in vec4s
}

// alignment is how an operand's chunks lie in memory.
type alignment int

const (
	wide alignment = iota // on a multiple of sixteen bytes
	even                  // on a word
	odd                   // anywhere
)

// line is the 16-bit floats from one line of the operand to the next; width of them are in the slice, and there are
// lines lines.
func (x slice) line() int {
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

func (x slice) lines() int { return x.tile * x.depth / x.width() }

func (x slice) chunks() int { return x.tile * x.depth / 8 }

// stride is the vec4s of a line in workgroup memory, one more than needed, against bank conflicts.
func (x slice) stride() int { return x.width()/8 + 1 }

func (x slice) quads() int { return x.lines() * x.stride() }

func (x slice) kind() alignment {
	switch {
	case x.line()%8 == 0 && x.batchStride%8 == 0:
		return wide
	case x.line()%2 == 0 && x.batchStride%2 == 0:
		return even
	}
	return odd
}

// 16-bit floats is how many the operand has.
func (x slice) elements() int { return (x.batch-1)*x.batchStride + x.size*x.k }

func (x slice) wgslType() string {
	if x.kind() == wide {
		return "vec4<u32>"
	}
	return "u32"
}

// helpers are functions for chunks that do not lie on sixteen bytes: mm_shift takes eight 16-bit floats from the second
// of ten on where odd, and mm_keep clears all but the first.
const helpers = `fn mm_shift(x: vec4<u32>, last: u32, odd: bool) -> vec4<u32> {
let y = vec4<u32>(x.yzw, last);
return select(x, (x >> vec4<u32>(16u)) | (y << vec4<u32>(16u)), odd);
}
fn mm_keep(x: vec4<u32>, left: i32) -> vec4<u32> {
let n = clamp(vec4<i32>(left) - vec4<i32>(0, 2, 4, 6), vec4<i32>(0), vec4<i32>(2));
return x & select(select(vec4<u32>(0u), vec4<u32>(0xffffu), n == vec4<i32>(1)), vec4<u32>(0xffffffffu), n == vec4<i32>(2));
}`

// open emits what does not change along k: for each chunk that an invocation moves, its line, its place in it and where
// it begins in the operand at k = 0; and where the subgroup's matrices begin in the slice. first is the subgroup's
// first row or column in the tile.
func (x slice) open(g *source, threads int, first string) {
	n, chunks := x.name, x.width()/8
	for q := range x.chunks() / threads {
		if threads%chunks == 0 {
			g.line("let %sl%d = lt / %du + %du; let %sc%d = lt %% %du;", n, q, chunks, q*threads/chunks, n, q, chunks)
		} else {
			g.line("let %sl%d = (lt + %du) / %du; let %sc%d = (lt + %du) %% %du;", n, q, q*threads, chunks, n, q, q*threads, chunks)
		}
		at := fmt.Sprintf("b * %du + %sl%d * %du + %s * %du + %sc%d * 8u", x.batchStride, n, q, x.size, x.place, x.tile, n, q)
		if x.alongK {
			row := fmt.Sprintf("%s * %du + %sl%d", x.place, x.tile, n, q)
			if x.size%x.tile != 0 {
				row = fmt.Sprintf("min(%s, %du)", row, x.size-1)
			}
			at = fmt.Sprintf("b * %du + (%s) * %du + %sc%d * 8u", x.batchStride, row, x.k, n, q)
		}
		if x.kind() == wide {
			at = "(" + at + ") / 8u"
		}
		g.line("let %sp%d = %s;\nvar %sr%d = vec4<u32>();", n, q, at, n, q)
	}
	if x.alongK {
		first = fmt.Sprintf("(%s) * %du", first, x.stride())
	} else {
		first = fmt.Sprintf("(%s) / 8u", first)
	}
	g.line("let %sm = %s + %du; let %sw = %du;", n, first, x.from, n, x.stride())
}

// load emits the loads to registers of the slice that begins at k0. What lies beyond k is zero; beyond the rows or
// columns it is anything.
func (x slice) load(g *source, threads int, k0 string) {
	for q := range x.chunks() / threads {
		v := x.chunk(q, k0)
		left := fmt.Sprintf("%s + %sl%d", k0, x.name, q) // the k that the chunk begins at
		if x.alongK {
			left = fmt.Sprintf("%s + %sc%d * 8u", k0, x.name, q)
		}
		switch {
		case x.k%x.depth == 0:
		case x.alongK && x.k%8 != 0:
			v = fmt.Sprintf("mm_keep(%s, %d - i32(%s))", v, x.k, left)
		default:
			v = fmt.Sprintf("select(vec4<u32>(), %s, %s < %du)", v, left, x.k)
		}
		g.line("%sr%d = %s;", x.name, q, v)
	}
}

// chunk is a chunk of the slice that begins at k0, read within the operand's bounds.
func (x slice) chunk(q int, k0 string) string {
	at := fmt.Sprintf("%sp%d + %s", x.name, q, k0)
	if !x.alongK {
		at += fmt.Sprintf(" * %du", x.size)
	}
	if x.kind() == wide {
		at = fmt.Sprintf("%sp%d + %s / 8u", x.name, q, k0)
		if !x.alongK {
			at = fmt.Sprintf("%sp%d + %s * %du", x.name, q, k0, x.size/8)
		}
		if x.k%x.depth != 0 || !x.alongK && x.size%x.tile != 0 {
			at = fmt.Sprintf("min(%s, %du)", at, x.elements()/8-1)
		}
		return fmt.Sprintf("mm_%s[%s]", x.name, at)
	}
	word := func(i int) string {
		return fmt.Sprintf("mm_%s[min((%s) / 2u + %du, %du)]", x.name, at, i, ceilDiv(x.elements(), 2)-1)
	}
	v := fmt.Sprintf("vec4<u32>(%s, %s, %s, %s)", word(0), word(1), word(2), word(3))
	if x.kind() == odd {
		v = fmt.Sprintf("mm_shift(%s, %s, ((%s) & 1u) == 1u)", v, word(4), at)
	}
	return v
}

// store emits the stores of the registers to workgroup memory, where the slices begin at the vec4 that at names.
func (x slice) store(g *source, threads int, at string) {
	for q := range x.chunks() / threads {
		g.line("stage[%s + %sl%d * %du + %sc%d + %du] = bitcast<vec4<f32>>(%sr%d);", at, x.name, q, x.stride(), x.name, q, x.from, x.name, q)
	}
}

// matrix emits the load of the subgroup's i-th matrix, the k-th along k.
func (x slice) matrix(g *source, size target.CooperativeMatrix, k, i int, at string) {
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

// declareAt defines how the epilogue reads an element: its bits.
func (x slice) declareAt(g *source) {
	bits := graph.Float16At("mm_"+x.name, graph.Var("at", 1<<32))
	if x.kind() == wide {
		bits = fmt.Sprintf("(mm_%s[at >> 3u][(at >> 1u) & 3u] >> ((at & 1u) * 16u)) & 65535u", x.name)
	}
	g.line("fn mm_at_%s(at: u32) -> u32 { return %s; }", x.name, bits)
}
