package matmul

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// Element is the type of an operand's elements. An array of 16-bit floats holds two a word (see graph.DType.Float16).
// Kernels convert them to f32, which is exact: the product has the same bits as with the operands in f32.
type Element = graph.DType

// The elements that kernels read.
const (
	F32  = graph.F32
	F16  = graph.F16
	BF16 = graph.BF16
)

// array is how a shader reads a binding.
type array struct {
	name    string // of its functions
	memory  string // the binding, which may be another operand's
	element Element
	quads   bool // by four elements
}

// typ is the type that the array is declared to hold.
func (a array) typ() string {
	switch {
	case a.element.Float16() && a.quads:
		return "vec2<u32>"
	case a.element.Float16():
		return "u32"
	case a.quads:
		return "vec4<f32>"
	}
	return "f32"
}

// bind adds an array to the bindings.
func (g *source) bind(a array) {
	if a.memory == a.name {
		g.arrays = append(g.arrays, Array{a.name, a.typ()})
	}
}

// bindOperand adds an array, and defines how 16-bit floats are read.
func (g *source) bindOperand(a array) {
	g.bind(a)
	if !a.element.Float16() {
		return
	}
	g.line("fn %s_widen(h: u32) -> f32 { return %v; }", a.name, a.element.Widen(scalar.Var("h", scalar.U32, 0)))
	if !a.quads {
		g.line("fn %s_read(at: u32) -> f32 { return %s_widen(%s); }", a.name, a.name, a.stored())
		return
	}
	g.line("fn %[1]s_read(at: u32) -> vec4<f32> { let w = %[2]s[at]; "+
		"return vec4<f32>(%[1]s_widen(w.x & 65535u), %[1]s_widen(w.x >> 16u), %[1]s_widen(w.y & 65535u), %[1]s_widen(w.y >> 16u)); }",
		a.name, a.memory)
}

// read is the f32, or with quads the vec4<f32>, at a place.
func (a array) read(at string) string {
	if a.element.Float16() {
		return a.name + "_read(" + at + ")"
	}
	return a.memory + "[" + at + "]"
}

// stored is element at as it is stored: an f32, or the bits of a 16-bit float.
func (a array) stored() string {
	switch {
	case a.element.Float16() && a.quads:
		return fmt.Sprintf("(%s[at >> 2u][(at >> 1u) & 1u] >> ((at & 1u) * 16u)) & 65535u", a.memory)
	case a.element.Float16():
		return graph.Float16At(a.memory, graph.Var("at", 1<<32, 0)).String()
	case a.quads:
		return a.memory + "[at >> 2u][at & 3u]"
	}
	return a.memory + "[at]"
}

// declareAt defines mm_at_x for an epilogue: an element of a binding as it is stored.
func (g *source) declareAt(a array) {
	g.line("fn mm_at_%s(at: u32) -> %s { return %s; }", a.name[len("mm_"):], one(a.element), a.stored())
}

// one is the type of an element as it is stored.
func one(e Element) string {
	if e.Float16() {
		return "u32"
	}
	return "f32"
}
