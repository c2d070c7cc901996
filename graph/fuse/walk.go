package fuse

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/gpupipe/gpupipe/graph"
)

// Walker writes the expressions of elements of a group's values. It inlines the nodes of the group and calls Load for
// stored values. Fusion uses it to find out whether a group can be a kernel, and package shaders to write the kernel's
// WGSL.
type Walker struct {
	Group   *Group
	Inlined func(n *graph.Node) bool
	// Load returns the expression of a stored value's element.
	Load func(v *graph.Value, at []graph.Index) string
	// Let names an expression; inner reports whether it depends on the column.
	Let func(inner bool, typ, expr string) string
	// Fixed holds results that exist at one place only: of reductions, and of the matrix product.
	Fixed map[*graph.Value]Fixed

	memo map[string]string
}

// Fixed is an expression that stands for the element of a value at one flat position.
type Fixed struct {
	Expr string
	Flat graph.Index
}

// unfusible is the panic of a walk that needs a fixed result elsewhere.
type unfusible struct{ v *graph.Value }

// isInner reports whether an expression depends on the column: on the column itself, or on an inner name of Let.
func isInner(expr string) bool {
	for name := range strings.FieldsFuncSeq(expr, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if number, ok := strings.CutPrefix(name, "c"); ok && (name == "col" || number != "" && strings.Trim(number, "0123456789") == "") {
			return true
		}
	}
	return false
}

// ResetInner forgets the elements that depend on the column, when a loop over columns ends.
func (w *Walker) ResetInner() {
	for key := range w.memo {
		if strings.HasPrefix(key, "inner ") {
			delete(w.memo, key)
		}
	}
}

// Value returns the expression of v's element at the coordinates.
func (w *Walker) Value(v *graph.Value, at []graph.Index) string {
	if f, ok := w.Fixed[v]; ok {
		if !graph.Flatten(v.Shape, at).Equal(f.Flat) {
			panic(unfusible{v})
		}
		return f.Expr
	}
	key := fmt.Sprintf("%d.%d", v.Node.ID, v.Index)
	inner := false
	for _, x := range at {
		expr := x.String()
		key, inner = key+","+expr, inner || isInner(expr)
	}
	if inner {
		key = "inner " + key
	}
	if w.memo == nil {
		w.memo = map[string]string{}
	}
	if name, ok := w.memo[key]; ok {
		return name
	}
	var expr string
	if w.Group.members[v.Node] || w.Inlined(v.Node) {
		e, ok := v.Node.Op.Kernel(v.Node).(graph.Elementwise)
		if !ok {
			panic(unfusible{v}) // a reduction of a later phase
		}
		expr = e.Emit(&frame{w, v.Node, inner}, at)
	} else {
		expr = w.Load(v, at)
	}
	name := w.Let(inner, WGSLType(v.DType), expr)
	w.memo[key] = name
	return name
}

// WGSLType is the scalar type of a dtype in a kernel, and of the array that holds it: of 16-bit floats, which are two a
// word in arrays, a u32 is the bits of one.
func WGSLType(d graph.DType) string {
	if d.Float16() {
		return "u32"
	}
	return d.String()
}

// frame is the Emitter of one node at one place.
type frame struct {
	w     *Walker
	n     *graph.Node
	inner bool
}

func (f *frame) Input(i int, at []graph.Index) string {
	in := f.n.Inputs[i]
	if len(at) != len(in.Shape) {
		panic(fmt.Sprintf("fuse: %s reads input %d of shape %v at %d coordinates", f.n.Op.Name(), i, in.Shape, len(at)))
	}
	return f.w.Value(in, at)
}

func (f *frame) Let(typ, expr string) string { return f.w.Let(f.inner, typ, expr) }
