// Package fuse decides which nodes of a graph become one kernel.
//
// [Run] expands composite ops, gives every node a [Group] of its own, except views, generators and arithmetic on single
// elements, which are computed where they are read, and then merges groups along the edges of the graph: chains of
// elementwise ops, reductions with the elementwise ops before and after them, matrix products with the elementwise ops
// after them. Two groups merge if the result has the same bits and the device's binding limit allows it. To find out, a
// [Walker] traces the group as package shaders will later write it. Finally the groups are put in an order in which
// values are short-lived and variables are read before they are overwritten. Groups never span two scopes.
package fuse

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// Kind is the shape of a kernel.
type Kind uint8

const (
	Map      Kind = iota // one element after the other
	Reduce               // rows: reductions over columns, with elementwise work before, between and after
	MatMul               // a batched matrix product and its epilogue
	Template             // hand-written
	Join                 // copies
)

// Group is the nodes of one kernel.
type Group struct {
	Kind  Kind
	Scope string
	Nodes []*graph.Node // ascending by ID
	Domain
	Stores []*graph.Value // results that others read, in order
	Loads  []*graph.Value // stored values that it reads, in order, no duplicates
	// InPlace pairs a store with a load that it may overwrite: every element is read by the invocation that then writes
	// it.
	InPlace map[*graph.Value][]*graph.Value

	members map[*graph.Node]bool
	arrays  int // bindings that loads need: parts of one value that are operands count each
}

// Domain is what a kernel iterates over. Map and MatMul kernels have Rows elements and one column.
type Domain struct {
	Rows, Cols int
	Shape      graph.Shape // of the reductions' input
	Axes       []int       // reduced
}

// trailing reports whether the reduced axes are the last ones, so that row·Cols + col is the position in memory.
func (d Domain) trailing() bool {
	return len(d.Axes) == 0 || d.Axes[0] == len(d.Shape)-len(d.Axes)
}

// Along reports whether neighboring columns are neighbors in the memory of a value of Shape; else neighboring rows are.
func (d Domain) Along() bool {
	for i := len(d.Shape) - 1; i >= 0; i-- {
		if d.Shape[i] > 1 {
			return slices.Contains(d.Axes, i)
		}
	}
	return true
}

// Full is the position, in memory, of element (row, col) of a value that has Rows·Cols elements.
func (d Domain) Full(row, col graph.Index) graph.Index {
	if d.trailing() {
		return row.Times(d.Cols).Plus(col)
	}
	var kept, reduced graph.Shape
	for i, n := range d.Shape {
		if slices.Contains(d.Axes, i) {
			reduced = append(reduced, n)
		} else {
			kept = append(kept, n)
		}
	}
	ks, rs := graph.Unflatten(kept, row), graph.Unflatten(reduced, col)
	at := make([]graph.Index, len(d.Shape))
	for i := range d.Shape {
		if slices.Contains(d.Axes, i) {
			at[i], rs = rs[0], rs[1:]
		} else {
			at[i], ks = ks[0], ks[1:]
		}
	}
	return graph.Flatten(d.Shape, at)
}

// Alias reports that a value lies in the memory of another, some elements from its start.
type Alias struct {
	Base   *graph.Value
	Offset int
}

// Aliases are the values that lie in the memory of others; a base is never an alias itself.
type Aliases map[*graph.Value]Alias

// Base is the value whose memory holds v.
func (a Aliases) Base(v *graph.Value) *graph.Value {
	if x, ok := a[v]; ok {
		return x.Base
	}
	return v
}

// Result is a graph as kernels, in an order that respects every dependency.
type Result struct {
	Graph  *graph.Graph // with expansions carried out
	Groups []*Group
	Alias  Aliases
	// Direct maps results that are stored straight into the variable that they are assigned to.
	Direct map[*graph.Value]*graph.Value
	// Inlined reports whether a node is computed wherever it is read.
	Inlined func(n *graph.Node) bool
}

// Options are the device's limits that fusion must respect.
type Options struct {
	MaxBindings     int
	OffsetAlignment int64 // bytes
	// SingleFloat16Stores reports that products store 16-bit floats one by one, as on a CPU. Other kernels store words.
	SingleFloat16Stores bool
}

// Run fuses a graph.
func Run(g *graph.Graph, opt Options) (*Result, error) {
	g, err := graph.Expand(g)
	if err != nil {
		return nil, err
	}
	f := &fuser{g: g, opt: opt, kernels: map[*graph.Node]graph.Kernel{}, group: map[*graph.Node]*Group{},
		alias: Aliases{}, stored: map[*graph.Value]bool{}, assigned: map[*graph.Value]*graph.Value{},
		directs: map[*graph.Value]*graph.Value{}, apart: map[[2]*Group]bool{}}
	f.classify()
	f.mergeAll()
	groups := f.finish()
	f.order(groups)
	return &Result{g, f.ordered, f.alias, f.directs, f.isInlined}, nil
}

type fuser struct {
	g        *graph.Graph
	opt      Options
	kernels  map[*graph.Node]graph.Kernel
	group    map[*graph.Node]*Group // nil for sources and for nodes computed where they are read
	alias    Aliases
	stored   map[*graph.Value]bool         // must be in memory whatever fusion does
	assigned map[*graph.Value]*graph.Value // value → the variable that it is assigned to
	users    map[*graph.Value][]*graph.Node
	directs  map[*graph.Value]*graph.Value
	apart    map[[2]*Group]bool // a producer and its reader that are no kernel together
	ordered  []*Group
}

// classify gives every node that is not computed in place where it is read a group of its own.
func (f *fuser) classify() {
	f.users = map[*graph.Value][]*graph.Node{}
	for _, n := range f.g.Nodes {
		f.kernels[n] = n.Op.Kernel(n)
		for _, in := range n.Inputs {
			f.users[in] = append(f.users[in], n)
		}
	}
	for i := len(f.g.Nodes) - 1; i >= 0; i-- {
		n := f.g.Nodes[i]
		switch f.kernels[n].(type) {
		case graph.Contraction, graph.Template, graph.Join:
			for _, in := range n.Inputs {
				f.store(in)
			}
		}
	}
	for _, o := range f.g.Outputs {
		f.store(o.Value)
	}
	for _, a := range f.g.Assigns {
		f.store(a.Value)
		if _, dup := f.assigned[a.Value]; !dup {
			f.assigned[a.Value] = a.Variable
		}
	}
	f.separate()
	for _, n := range f.g.Nodes {
		if !f.inlined(n) {
			f.group[n] = f.single(n)
		}
	}
	f.fit()
}

// separate gives memory of its own to an operand that would overlap another operand of the same kernel in part: two
// bindings may be equal, in which case they become one, but not overlap.
func (f *fuser) separate() {
	for _, n := range f.g.Nodes {
		switch f.kernels[n].(type) {
		case graph.Contraction, graph.Template:
			for i, v := range n.Inputs {
				for _, w := range n.Inputs[:i] {
					if !f.overlaps(v, w) {
						continue
					}
					if _, ok := f.alias[v]; !ok {
						v = w
					}
					delete(f.alias, v)
					f.stored[v] = true
				}
			}
		}
	}
}

// overlaps reports whether two values share a part of their memory, but not all.
func (f *fuser) overlaps(v, w *graph.Value) bool {
	a, b := f.alias[v].Offset, f.alias[w].Offset
	if f.alias.Base(v) != f.alias.Base(w) || a == b && v.Shape.Len() == w.Shape.Len() {
		return false
	}
	return a < b+w.Shape.Len() && b < a+v.Shape.Len()
}

// store demands that v be in memory, as a part of another value's memory where possible.
func (f *fuser) store(v *graph.Value) {
	if f.stored[v] {
		return
	}
	if base, off, ok := f.contiguous(v); ok {
		if a, chained := f.alias[base]; chained {
			base, off = a.Base, a.Offset+off
		}
		if f.bindable(v, base, off) {
			f.store(base)
			if a, chained := f.alias[base]; chained {
				base, off = a.Base, a.Offset+off
			}
			if f.bindable(v, base, off) {
				f.alias[v] = Alias{base, off}
				return
			}
		}
	}
	f.stored[v] = true
}

// bindable reports whether v can be a part of base's memory: it begins where a binding may, and is all of base or whole
// words.
func (f *fuser) bindable(v, base *graph.Value, off int) bool {
	size, n := v.DType.Size(), v.Shape.Len()
	return off*size%max(4, int(f.opt.OffsetAlignment)) == 0 && (n*size%4 == 0 || n == base.Shape.Len())
}

// contiguous reports whether v is a view of adjacent elements of its input.
func (f *fuser) contiguous(v *graph.Value) (base *graph.Value, offset int, ok bool) {
	e, isElem := f.kernels[v.Node].(graph.Elementwise)
	if !isElem || !e.View || len(v.Node.Inputs) != 1 || v.Node.Inputs[0].DType != v.DType {
		return nil, 0, false
	}
	t := &viewTrace{element: placeholder(v.DType)}
	i := graph.Var("i", v.Shape.Len(), Row)
	if e.Emit(t, graph.Unflatten(v.Shape, i)) != t.element || t.calls != 1 {
		return nil, 0, false
	}
	base = v.Node.Inputs[0]
	flat := graph.Flatten(base.Shape, t.at)
	if v.Shape.Len() == 1 {
		offset, ok = flat.IsConst()
		return base, offset, ok
	}
	offset, ok = flat.Minus(i)
	return base, offset, ok
}

// viewTrace notes where a view reads its input.
type viewTrace struct {
	element *scalar.Expr // that it reads
	at      []graph.Index
	calls   int
}

func (t *viewTrace) Input(_ int, at []graph.Index) *scalar.Expr {
	t.at, t.calls = at, t.calls+1
	return t.element
}
func (t *viewTrace) Let(x *scalar.Expr) *scalar.Expr { return x }

// placeholder stands for an element whose code does not matter.
func placeholder(d graph.DType) *scalar.Expr { return scalar.Var("x", d.Scalar(), 0) }

// inlined reports whether a node is computed wherever it is read: views, generators and arithmetic on single elements.
func (f *fuser) inlined(n *graph.Node) bool {
	e, ok := f.kernels[n].(graph.Elementwise)
	return ok && !f.stored[n.Outputs[0]] && (e.View || len(n.Inputs) == 0 || n.Outputs[0].Shape.Len() == 1)
}

func (f *fuser) single(n *graph.Node) *Group {
	g := &Group{Scope: n.Scope, Nodes: []*graph.Node{n}, members: map[*graph.Node]bool{n: true}}
	switch k := f.kernels[n].(type) {
	case graph.Memory:
		return nil
	case graph.Elementwise:
		g.Kind, g.Rows, g.Cols = Map, n.Outputs[0].Shape.Len(), 1
	case graph.Reduction:
		in := n.Inputs[0].Shape
		g.Kind, g.Shape, g.Axes = Reduce, in, k.Axes
		g.Rows = n.Outputs[0].Shape.Len()
		g.Cols = in.Len() / g.Rows
	case graph.Contraction:
		g.Kind, g.Rows, g.Cols = MatMul, n.Outputs[0].Shape.Len(), 1
	case graph.Template:
		g.Kind = Template
	case graph.Join:
		g.Kind = Join
	default:
		panic("fuse: " + n.Op.Name() + " has no kernel")
	}
	return g
}
