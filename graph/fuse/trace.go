package fuse

import (
	"cmp"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// trace walks the group as its kernel will, and records what it stores, loads and may overwrite. It fails if a value is
// needed at an element that the kernel does not compute there.
func (f *fuser) trace(g *Group) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(unfusible); !is {
				panic(r)
			}
			ok = false
		}
	}()
	g.Stores = nil
	for _, n := range g.Nodes {
		for _, v := range n.Outputs {
			// A template writes all of its results, read or not.
			if g.Kind == Template || f.external(v, g) {
				g.Stores = append(g.Stores, v)
			}
		}
	}
	t := &tracer{f: f, g: g, places: map[*graph.Value][]graph.Index{}}
	if g.Kind == Template || g.Kind == Join {
		for i, in := range g.Nodes[0].Inputs {
			if i == 0 && Update(g) != nil {
				continue // the result lies in its memory
			}
			t.operands = append(t.operands, in)
			t.note(in)
		}
	} else if !t.run() {
		return false
	}
	g.Loads, g.InPlace, g.arrays = t.loads, t.inPlace(), t.arrays()
	return true
}

// Update returns what a kernel does that replaces a part of a variable, nil for other kernels.
func Update(g *Group) *graph.Update {
	if g.Kind != Template {
		return nil
	}
	return g.Nodes[0].Op.Kernel(g.Nodes[0]).(graph.Template).Update
}

type tracer struct {
	f        *fuser
	g        *Group
	loads    []*graph.Value
	places   map[*graph.Value][]graph.Index // where each is read
	operands []*graph.Value                 // of a matrix product or a template: read everywhere
}

// arrays counts the storage bindings of the values that are read.
func (t *tracer) arrays() int {
	type part struct {
		Alias
		n int
	}
	bound := map[part]bool{}
	for v := range t.places {
		bound[part{Alias{v, 0}, v.Shape.Len()}] = true
	}
	for _, v := range t.operands {
		bound[part{Alias{t.f.alias.Base(v), t.f.alias[v].Offset}, v.Shape.Len()}] = true
	}
	return len(bound)
}

func (t *tracer) note(v *graph.Value) *graph.Value {
	v = t.f.alias.Base(v)
	if !slices.Contains(t.loads, v) {
		t.loads = append(t.loads, v)
	}
	return v
}

func (t *tracer) run() bool {
	g := t.g
	row, col := graph.Var("row", g.Rows, Row), graph.Var("col", g.Cols, Column)
	w := &Walker{Group: g, Inlined: t.f.isInlined,
		Fixed: map[*graph.Value]Fixed{},
		Let:   func(_ int, x *scalar.Expr) *scalar.Expr { return scalar.Var("x", x.Type, 0) },
		Load: func(v *graph.Value, at []graph.Index) *scalar.Expr {
			offset := t.f.alias[v].Offset
			base := t.note(v)
			t.places[base] = append(t.places[base], graph.Flatten(v.Shape, at).Plus(graph.Const(offset)))
			return placeholder(v.DType)
		}}
	if g.Kind == MatMul {
		n := t.contraction()
		w.Fixed[n.Outputs[0]] = Fixed{placeholder(n.Outputs[0].DType), row}
		for _, in := range n.Inputs {
			if g.members[t.f.alias.Base(in).Node] {
				return false // a product cannot read what its own kernel computes
			}
			t.note(in)
			t.operands = append(t.operands, in)
		}
	}
	for _, phase := range g.Phases() {
		for _, n := range phase {
			w.Value(n.Inputs[0], graph.Unflatten(n.Inputs[0].Shape, g.Full(row, col)))
		}
		for _, n := range phase {
			w.Fixed[n.Outputs[0]] = Fixed{placeholder(n.Outputs[0].DType), row}
		}
	}
	for _, v := range g.Stores {
		if v.DType.Float16() && !t.ownsWords(v) {
			return false
		}
		flat := row
		if g.IsFull(v) {
			if !g.trailing() || g.Rows < fewRows && g.Cols > longRow {
				return false
			}
			flat = g.Full(row, col)
		}
		w.Value(v, graph.Unflatten(v.Shape, flat))
	}
	return !t.partialOperand()
}

// partialOperand reports whether a matrix operand is a part of a value that the epilogue reads: the bindings would
// overlap.
func (t *tracer) partialOperand() bool {
	if t.g.Kind != MatMul {
		return false
	}
	return slices.ContainsFunc(t.contraction().Inputs, func(v *graph.Value) bool {
		base := t.f.alias.Base(v)
		return len(t.places[base]) > 0 && base.Shape.Len() != v.Shape.Len()
	})
}

// operand reports whether an operand lies in v's memory.
func (t *tracer) operand(v *graph.Value) bool {
	return slices.ContainsFunc(t.operands, func(o *graph.Value) bool { return t.f.alias.Base(o) == v })
}

func (t *tracer) contraction() *graph.Node {
	i := slices.IndexFunc(t.g.Nodes, func(n *graph.Node) bool { _, ok := t.f.kernels[n].(graph.Contraction); return ok })
	return t.g.Nodes[i]
}

// inPlace lists for each store the loads of equal size that are read only at the element that is stored.
func (t *tracer) inPlace() map[*graph.Value][]*graph.Value {
	m := map[*graph.Value][]*graph.Value{}
	if t.g.Kind == Reduce && t.g.StoresFloat16() {
		return m // the columns that an invocation stores are others than those that it reduced
	}
	row, col := graph.Var("row", t.g.Rows, Row), graph.Var("col", t.g.Cols, Column)
	for _, s := range t.g.Stores {
		flat := row
		if t.g.IsFull(s) {
			flat = t.g.Full(row, col)
		} else if t.g.Kind == Reduce {
			continue // many invocations read what one writes
		}
		for v, places := range t.places {
			same := v.DType == s.DType && v.Type.Bytes() == s.Type.Bytes() && !t.operand(v) &&
				!slices.ContainsFunc(places, func(x graph.Index) bool { return !x.Equal(flat) })
			if same {
				m[s] = append(m[s], v)
			}
		}
		slices.SortFunc(m[s], func(a, b *graph.Value) int { return cmp.Compare(a.Node.ID, b.Node.ID) })
	}
	return m
}

// IsFull reports whether a stored value has an element for each row and column, and not one a row.
func (g *Group) IsFull(v *graph.Value) bool {
	return g.Cols > 1 && v.Shape.Len() == g.Rows*g.Cols
}

// ownsWords reports whether each word of a stored value of 16-bit floats is written by one invocation, which then needs
// no atomics: in a Map kernel, which computes two elements at a time, in a Reduce kernel that can take its columns in
// pairs, and as the one such result of a matrix product whose columns are computed in fours. Where single 16-bit floats
// are stored, such a product has any number of them.
func (t *tracer) ownsWords(v *graph.Value) bool {
	g := t.g
	switch g.Kind {
	case Map:
		return true
	case Reduce:
		return g.IsFull(v) && g.Cols%2 == 0
	}
	shape := t.contraction().Outputs[0].Shape
	another := func(w *graph.Value) bool { return w != v && w.DType.Float16() }
	return shape[len(shape)-1]%4 == 0 && (t.f.opt.SingleFloat16Stores || !slices.ContainsFunc(g.Stores, another))
}

// StoresFloat16 reports whether a result is of 16-bit floats.
func (g *Group) StoresFloat16() bool {
	return slices.ContainsFunc(g.Stores, func(v *graph.Value) bool { return v.DType.Float16() })
}
