package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// split is a kernel for few rows. Its first pass folds each row into parts partial results: part i takes every parts-th
// column, or with a workgroup per part every parts-th run of columns. Its second pass folds the partial results in a
// fixed order.
type split struct {
	name  string
	parts int     // of a row
	first rowLoop // an invocation or a workgroup a part
	last  rowLoop // an invocation or a workgroup a row
}

// The work that keeps a large GPU busy: workgroups of 256 invocations, or invocations.
const spreadGroups, spreadInvocations = 1024, 1 << 17

// splitKernels are the kernels in two passes, if rows are few and long enough.
func (l *groupLowering) splitKernels() []Kernel {
	g := l.g
	if _, full := l.split(); len(full) > 0 || len(g.Phases()) != 1 || g.Cols < 128 || g.Rows >= enoughInvocations {
		return nil
	}
	alone := rowLoop{workgroup, false}
	parts := max(2, min(256, g.Cols/16, 16384/g.Rows))
	ks := []Kernel{l.splitKernel(split{fmt.Sprint("split", parts), parts, alone, alone})}
	if s, ok := l.spread(); ok {
		ks = append(ks, l.splitKernel(s))
	}
	// several sums may make one result, and their partial results are more arrays than fusion counted
	return slices.DeleteFunc(ks, func(k Kernel) bool {
		return slices.ContainsFunc(k.Passes, func(p Pass) bool { return len(p.Args) > l.lim.MaxBindings })
	})
}

// spread is the split that keeps a GPU busy. Where columns are neighbors in memory a workgroup takes each part, else an
// invocation, whose neighbors have the same columns of neighboring rows.
func (l *groupLowering) spread() (s split, ok bool) {
	const most = 256
	g := l.g
	if l.lim.Software || l.lim.MaxInvocations < most || most*4*len(g.Phases()[0]) > l.lim.MaxWorkgroupMemory {
		return s, false
	}
	s = split{parts: min(most, g.Cols/16, spreadInvocations/g.Rows), first: rowLoop{workgroup, false}, last: rowLoop{32, true}}
	if g.Along() {
		s.parts, s.first = min(g.Cols/(4*most), spreadGroups/g.Rows), rowLoop{most, true}
	}
	if s.parts > most {
		s.last.invocations = most
	}
	s.name = fmt.Sprint("spread", s.parts)
	return s, s.parts > 1
}

func (l *groupLowering) splitKernel(s split) Kernel {
	k := Kernel{Name: s.name, Passes: []Pass{l.partsPass(s), l.wholePass(s)}}
	for range l.g.Phases()[0] {
		k.Scratch = append(k.Scratch, int64(l.g.Rows*s.parts*4))
	}
	return k
}

// place is where a part lies in scratch memory: as they are written, the parts of a row together or the rows of a part.
func (s split) place(rows int) *scalar.Expr {
	row, part := variable("row", fuse.Row), variable("part", fuse.Row)
	if s.first.cooperative {
		return row.Mul(number(s.parts)).Add(part)
	}
	return part.Mul(number(rows)).Add(row)
}

func (l *groupLowering) partsPass(s split) Pass {
	g, n, lanes := l.g, l.g.Rows*s.parts, s.first.invocations
	phase, w := g.Phases()[0], l.newWriter()
	var head []scalar.Stmt
	part, groups := variable("part", fuse.Row), ceil(n, lanes)
	from, step := part, number(s.parts)
	if s.first.cooperative {
		let(&head, "row", fuse.Row, scalar.Group.Div(number(s.parts)))
		let(&head, "part", fuse.Row, scalar.Group.Rem(number(s.parts)))
		from, step, groups = part.Mul(number(lanes)).Add(scalar.Lane), number(s.parts*lanes), n
	} else {
		head = unless("id", scalar.Group.Mul(number(lanes)).Add(scalar.Lane), n)
		id := variable("id", fuse.Row)
		let(&head, "row", fuse.Row, id.Rem(number(g.Rows)))
		let(&head, "part", fuse.Row, id.Div(number(g.Rows)))
	}
	var stores []scalar.Stmt
	for i, acc := range w.accumulate(phase, graph.Var("row", g.Rows, fuse.Row), scalar.Count("col", fuse.Column, from, number(g.Cols),
		step)) {
		sum := w.combine(phase[i], acc, s.first)
		stores = append(stores, scalar.Assign{To: w.scratch(i, sum.Type, n, s.place(g.Rows)), Value: sum})
	}
	return w.pass(slices.Concat(head, w.outer, s.first.guard(stores)), lanes, groups)
}

func (l *groupLowering) wholePass(s split) Pass {
	g, w, lanes := l.g, l.newWriter(), s.last.invocations
	row := graph.Var("row", g.Rows, fuse.Row)
	for i, n := range g.Phases()[0] {
		t := n.Inputs[0].DType.Scalar()
		acc := scalar.Var(fmt.Sprintf("acc%d", i), t, fuse.Row)
		loop := s.last.count("part", s.parts)
		loop.Body = []scalar.Stmt{scalar.Assign{To: acc, Value: folded(n, acc, w.scratch(i, t, g.Rows*s.parts, s.place(g.Rows)))}}
		w.outer = append(w.outer, scalar.Declare{Name: acc.Name, Value: neutral(n)}, loop)
		w.fix(n, row, w.combine(n, acc, s.last))
	}
	stores := w.stores(g.Stores, row)
	if s.last.cooperative {
		return w.pass(slices.Concat([]scalar.Stmt{scalar.Let{Name: "row", Value: scalar.Group}}, w.outer, s.last.guard(stores)), lanes,
			g.Rows)
	}
	head := unless("row", scalar.Group.Mul(number(lanes)).Add(scalar.Lane), g.Rows)
	return w.pass(slices.Concat(head, w.outer, stores), lanes, ceil(g.Rows, lanes))
}
