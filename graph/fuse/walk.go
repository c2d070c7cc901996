package fuse

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// The depths of a kernel's loops: see scalar.Expr. A kernel without a loop over columns has rows alone.
const (
	Row    = 1
	Column = 2
)

// Walker writes the elements of a group's values as code. It inlines the nodes of the group and calls Load for stored
// values. Fusion uses it to find out whether a group can be a kernel, and package shaders to write the kernel.
type Walker struct {
	Group   *Group
	Inlined func(n *graph.Node) bool
	// Load returns a stored value's element.
	Load func(v *graph.Value, at []graph.Index) *scalar.Expr
	// Let computes an expression once, in the loop of the depth, and returns the variable that holds it.
	Let func(depth int, x *scalar.Expr) *scalar.Expr
	// Fixed holds results that exist at one place only: of reductions, and of the matrix product.
	Fixed map[*graph.Value]Fixed

	memo [Column + 1]map[string]*scalar.Expr // elements that were computed, by depth, value and coordinates
}

// Fixed is the element of a value at one flat position.
type Fixed struct {
	Expr *scalar.Expr
	Flat graph.Index
}

// unfusible is the panic of a walk that needs a fixed result elsewhere.
type unfusible struct{ v *graph.Value }

// EndColumns forgets the elements that depend on the column, when a loop over columns ends.
func (w *Walker) EndColumns() { w.memo[Column] = nil }

// Value returns v's element at the coordinates.
func (w *Walker) Value(v *graph.Value, at []graph.Index) *scalar.Expr {
	if f, ok := w.Fixed[v]; ok {
		if !graph.Flatten(v.Shape, at).Equal(f.Flat) {
			panic(unfusible{v})
		}
		return f.Expr
	}
	depth := 0
	var key strings.Builder
	fmt.Fprintf(&key, "%d.%d", v.Node.ID, v.Index)
	for _, x := range at {
		fmt.Fprintf(&key, ",%v", x)
		depth = max(depth, x.Depth())
	}
	if x, ok := w.memo[depth][key.String()]; ok {
		return x
	}
	var x *scalar.Expr
	if w.Group.members[v.Node] || w.Inlined(v.Node) {
		e, ok := v.Node.Op.Kernel(v.Node).(graph.Elementwise)
		if !ok {
			panic(unfusible{v}) // a reduction of a later phase
		}
		x = e.Emit(&frame{w, v.Node, depth}, at)
	} else {
		x = w.Load(v, at)
	}
	if x.Type != v.DType.Scalar() {
		panic(fmt.Sprintf("fuse: the kernel of %s computes %v, expected %v", v.Node.Op.Name(), x.Type, v.DType.Scalar()))
	}
	if w.memo[depth] == nil {
		w.memo[depth] = map[string]*scalar.Expr{}
	}
	x = w.Let(depth, x)
	w.memo[depth][key.String()] = x
	return x
}

// frame is the Emitter of one node at one place.
type frame struct {
	w     *Walker
	n     *graph.Node
	depth int
}

func (f *frame) Input(i int, at []graph.Index) *scalar.Expr {
	in := f.n.Inputs[i]
	if len(at) != len(in.Shape) {
		panic(fmt.Sprintf("fuse: %s reads input %d of shape %v at %d coordinates", f.n.Op.Name(), i, in.Shape, len(at)))
	}
	return f.w.Value(in, at)
}

func (f *frame) Let(x *scalar.Expr) *scalar.Expr { return f.w.Let(f.depth, x) }
