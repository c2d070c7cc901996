package shaders

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// writer collects the code of one pass: its bindings, and the statements of the row and of the loop over columns.
type writer struct {
	l            *groupLowering
	args         []Arg
	bindings     []scalar.Array    // of args
	names        map[string]int    // by storage key
	held         map[string]string // arrays by storage key that the kernel binds besides
	shared       []scalar.Array    // memory of a workgroup
	outer, inner []scalar.Stmt
	lets         int
	*fuse.Walker
}

func (l *groupLowering) newWriter() *writer {
	w := &writer{l: l, names: map[string]int{}, held: map[string]string{}}
	w.Walker = &fuse.Walker{Group: l.g, Inlined: l.r.Inlined, Fixed: map[*graph.Value]fuse.Fixed{}, Load: w.load, Let: w.let}
	return w
}

// binding returns the name of the array that holds v.
func (w *writer) binding(v *graph.Value) string {
	key := w.l.key(v)
	if name, ok := w.held[key]; ok {
		return name
	}
	i, ok := w.names[key]
	if !ok {
		i = w.bind(Arg{Value: v}, array(v))
		w.names[key] = i
	}
	return w.bindings[i].Name
}

// array is the array of a value's elements, without a name.
func array(v *graph.Value) scalar.Array {
	n := v.Shape.Len()
	if v.DType.Float16() {
		n = ceil(n, 2)
	}
	return scalar.Array{Type: v.DType.Scalar(), Len: n}
}

func (w *writer) bind(a Arg, to scalar.Array) int {
	to.Name = fmt.Sprintf("b%d", len(w.args))
	w.args, w.bindings = append(w.args, a), append(w.bindings, to)
	return len(w.args) - 1
}

// scratch binds the i-th scratch array, of n elements, and returns the one at a place.
func (w *writer) scratch(i int, t scalar.Type, n int, place *scalar.Expr) *scalar.Expr {
	name := w.bindings[w.bind(Arg{Scratch: i}, scalar.Array{Type: t, Len: n})].Name
	return scalar.At(name, t, place)
}

func (w *writer) load(v *graph.Value, at []graph.Index) *scalar.Expr {
	return w.l.element(w.binding(v), v.DType, graph.Flatten(v.Shape, at))
}

// element is an array's element: of 16-bit floats, its bits. Compilers of C would gather words, where they read vectors
// of 16-bit numbers.
func (l *groupLowering) element(array string, d graph.DType, at graph.Index) *scalar.Expr {
	if d.Float16() {
		if _, known := at.Mod(2).IsConst(); l.lim.Native && !known {
			return scalar.Bits16At(array, at.Expr())
		}
		return graph.Float16At(array, at)
	}
	return scalar.At(array, d.Scalar(), at.Expr())
}

func (w *writer) let(depth int, x *scalar.Expr) *scalar.Expr {
	w.lets++
	if depth == fuse.Column {
		return let(&w.inner, fmt.Sprintf("c%d", w.lets), depth, x)
	}
	return let(&w.outer, fmt.Sprintf("r%d", w.lets), depth, x)
}

// let adds the declaration of a variable to statements, and returns the variable.
func let(to *[]scalar.Stmt, name string, depth int, x *scalar.Expr) *scalar.Expr {
	*to = append(*to, scalar.Let{Name: name, Value: x})
	return scalar.Var(name, x.Type, depth)
}

// variable is a u32 of a kernel.
func variable(name string, depth int) *scalar.Expr { return scalar.Var(name, scalar.U32, depth) }

// number is a constant u32.
func number(n int) *scalar.Expr { return scalar.U(uint32(n)) }

// pass is the kernel of the statements on a GPU.
func (w *writer) pass(body []scalar.Stmt, invocations, groups int) Pass {
	memory := 0
	for _, a := range w.shared {
		memory += 4 * a.Len
	}
	k := w.kernel(body, invocations, groups)
	return Pass{Source: k.WGSL(), Args: w.args, Workgroup: [3]int{invocations, 1, 1}, Groups: k.Grid, WorkgroupMemory: memory}
}

// nativePass is the kernel of the statements on a CPU, by one invocation a workgroup.
func (w *writer) nativePass(body []scalar.Stmt, groups int) Pass {
	k := w.kernel(body, 1, groups)
	return Pass{Source: native.Kernel(k), Args: w.args, Workgroup: [3]int{1, 1, 1}, Groups: k.Grid, Inside: true}
}

func (w *writer) kernel(body []scalar.Stmt, invocations, groups int) scalar.Kernel {
	k := scalar.Kernel{Bindings: w.bindings, Shared: w.shared, Lanes: invocations, Groups: groups, Grid: w.l.lim.Fold(groups), Body: body}
	if err := k.Check(); err != nil {
		panic(fmt.Sprintf("shaders: %s: %v", Label(w.l.g), err))
	}
	return k
}

// stores returns the stores of values at the given positions, which are those of one word where there are 16-bit floats
// among the values; every value is computed before any is stored.
func (w *writer) stores(vs []*graph.Value, at ...graph.Index) (stores []scalar.Stmt) {
	for _, v := range vs {
		xs := make([]*scalar.Expr, len(at))
		for i, x := range at {
			xs[i] = w.Value(v, graph.Unflatten(v.Shape, x))
		}
		if v.DType.Float16() {
			stores = append(stores, scalar.Assign{To: scalar.At(w.binding(v), scalar.U32, at[0].Over(2).Expr()), Value: word(xs, at)})
			continue
		}
		for i, x := range at {
			stores = append(stores, scalar.Assign{To: scalar.At(w.binding(v), v.DType.Scalar(), x.Expr()), Value: xs[i]})
		}
	}
	return stores
}

// singleStores returns the stores of values at one position. Only kernels in C can store 16-bit floats one by one.
func (w *writer) singleStores(vs []*graph.Value, at graph.Index) (stores []scalar.Stmt) {
	for _, v := range vs {
		x := w.Value(v, graph.Unflatten(v.Shape, at))
		to := scalar.At(w.binding(v), array(v).Type, at.Expr())
		if v.DType.Float16() {
			to = scalar.Bits16At(to.Name, at.Expr())
		}
		stores = append(stores, scalar.Assign{To: to, Value: x})
	}
	return stores
}

// word joins the bits of two 16-bit floats. If the second repeats the first, at the end of an odd tensor, its bits are
// zero.
func word(xs []*scalar.Expr, at []graph.Index) *scalar.Expr {
	if len(xs) == 1 {
		return xs[0]
	}
	high := xs[1].Left(16)
	if _, sure := at[1].Mod(2).IsConst(); !sure {
		high = scalar.Select(number(0), high, at[1].Mod(2).Expr().Equal(number(1)))
	}
	return xs[0].Or(high)
}

func ceil(a, b int) int { return (a + b - 1) / b }
