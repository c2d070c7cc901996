package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// nativeReduce is a reduction on a CPU, with a vector along the neighbors in memory: along columns it accumulates each
// row in parts of a vector, across columns it accumulates a block of rows at once. Few long rows are folded in parts by
// several workgroups, then as a whole in a fixed order. All of that depends on the shape alone, never on the number of
// threads.
func (l *groupLowering) nativeReduce() Kernel {
	_, full := l.split()
	single := len(full) == 0 && len(l.g.Phases()) == 1
	switch {
	case single && l.g.Along() && l.parts(l.g.Rows) > 1:
		return l.nativeParts()
	case single && !l.g.Along():
		return l.nativeBlocks()
	}
	return l.nativeRows()
}

// parts is the number of parts of each row, where so many pieces of work are in all parts of one size.
func (l *groupLowering) parts(pieces int) int {
	const enough = 32 // pieces of work for all threads
	return max(1, min(enough/pieces, l.g.Rows*l.g.Cols/nativeElements, l.g.Cols))
}

// nativeRows computes whole rows.
func (l *groupLowering) nativeRows() Kernel {
	w, _ := l.newNativeWriter()
	stores := w.row(rowLoop{1, false})
	share := max(1, nativeElements/l.g.Cols)
	body := shareOf("row", share, l.g.Rows, append(w.outer, stores...)...)
	return Kernel{Name: "native", Passes: []Pass{w.nativePass([]scalar.Stmt{body}, ceil(l.g.Rows, share))}}
}

// nativeParts folds the parts of each row in a first pass, and the results of a row in a second.
func (l *groupLowering) nativeParts() Kernel {
	g, parts := l.g, l.parts(l.g.Rows)
	phase := g.Phases()[0]
	share := ceil(g.Cols, parts)
	parts = ceil(g.Cols, share)
	w, _ := l.newNativeWriter()
	let(&w.outer, "row", fuse.Row, scalar.Group.Div(number(parts)))
	from := scalar.Group.Rem(number(parts)).Mul(number(share))
	loop := scalar.Count("col", fuse.Column, from, scalar.Min(from.Add(number(share)), number(g.Cols)), number(1))
	var stores []scalar.Stmt
	for i, acc := range w.accumulate(phase, graph.Var("row", g.Rows, fuse.Row), loop) {
		stores = append(stores, scalar.Assign{To: w.scratch(i, acc.Type, g.Rows*parts, scalar.Group),
			Value: acc})
	}
	first := w.nativePass(append(w.outer, stores...), g.Rows*parts)
	w, _ = l.newNativeWriter()
	row := graph.Var("row", g.Rows, fuse.Row)
	for i, n := range phase {
		w.fold(n, i, parts, row)
	}
	stores = w.stores(g.Stores, row)
	whole := scalar.Count("row", fuse.Row, number(0), number(g.Rows), number(1), append(w.outer, stores...)...)
	return l.inParts(parts, first, w.nativePass([]scalar.Stmt{whole}, 1))
}

// fold adds the loop that folds the parts of a reduction, and fixes its result.
func (w *writer) fold(n *graph.Node, i, parts int, row graph.Index) {
	t := n.Inputs[0].DType.Scalar()
	acc := scalar.Var(fmt.Sprintf("whole%d", i), t, fuse.Row)
	place := row.Expr().Mul(number(parts)).Add(variable("part", fuse.Column))
	next := folded(n, acc, w.scratch(i, t, w.l.g.Rows*parts, place))
	loop := scalar.Count("part", fuse.Column, number(0), number(parts), number(1), scalar.Assign{To: acc, Value: next})
	w.outer = append(w.outer, scalar.Declare{Name: acc.Name, Value: neutral(n)}, loop)
	w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: acc, Flat: row}
}

func (l *groupLowering) inParts(parts int, passes ...Pass) Kernel {
	k := Kernel{Name: "native", Passes: passes}
	for range l.g.Phases()[0] {
		k.Scratch = append(k.Scratch, int64(l.g.Rows*parts*4))
	}
	return k
}

// nativeBlock is the largest number of rows that a workgroup accumulates at once: their sums stay in the first cache.
const nativeBlock = 512

// rowBlock is the block of rows that are accumulated together. In the loop over a block's rows col counts rows, from
// the first one of all or of the block. So what depends on the reduced column alone is computed once for all of them.
type rowBlock struct {
	rows   int
	blocks int
	share  int // blocks of a workgroup
	row    graph.Index
	first  bool // col counts from the first row of the block
}

// rowBlocks are the possible blocks: of nativeBlock rows, and of rows that divide the last extents of a shape.
func (l *groupLowering) rowBlocks() []rowBlock {
	n := l.g.Rows
	block := func(rows int) rowBlock {
		return rowBlock{rows: rows, blocks: ceil(n, rows), share: max(1, nativeElements/(rows*l.g.Cols)),
			row: graph.Var("col", n, fuse.Column)}
	}
	out := []rowBlock{block(nativeBlock)}
	for _, count := range l.columnCounts() {
		rows := count / ceil(count, nativeBlock)
		if count == n || rows < 32 || count%rows != 0 {
			continue
		}
		b := block(rows)
		b.row, b.first = graph.Var("line", n/rows, fuse.Row).Times(rows).Plus(graph.Var("col", rows, fuse.Column)), true
		if l.indexes(b.row) {
			out = append(out, b)
		}
	}
	return out
}

// indexes reports whether the row is found again in the coordinates of every value that has a row's elements.
func (l *groupLowering) indexes(row graph.Index) bool {
	found := func(v *graph.Value) bool {
		return v.Shape.Len() != l.g.Rows || graph.Flatten(v.Shape, graph.Unflatten(v.Shape, row)).Equal(row)
	}
	for _, n := range l.g.Nodes {
		for _, v := range slices.Concat(n.Inputs, n.Outputs) {
			if !found(v) {
				return false
			}
		}
	}
	return true
}

// The variables of a block: its first row, the number of its rows, and a row in it.
func (b rowBlock) top() *scalar.Expr   { return scalar.Var("top", scalar.U32, fuse.Row) }
func (b rowBlock) count() *scalar.Expr { return scalar.Var("rows", scalar.U32, fuse.Row) }
func (b rowBlock) r() *scalar.Expr     { return variable("r", fuse.Column) }

// pass is the pass of a workgroup, by statements for each of its blocks and part.
func (b rowBlock) pass(w *writer, parts int, body []scalar.Stmt) Pass {
	groups, n := ceil(b.blocks, b.share), w.l.g.Rows
	rows := number(b.rows)
	if n%b.rows != 0 {
		rows = scalar.Min(rows, number(n).Sub(b.top()))
	}
	block := []scalar.Stmt{scalar.Let{Name: "top", Value: scalar.Var("line", scalar.U32, fuse.Row).Mul(number(b.rows))},
		scalar.Let{Name: "rows", Value: rows}}
	from := scalar.Group.Rem(number(groups)).Mul(number(b.share))
	blocks := scalar.Count("line", fuse.Row, from, scalar.Min(from.Add(number(b.share)), number(b.blocks)), number(1),
		append(block, body...)...)
	return w.nativePass([]scalar.Stmt{scalar.Let{Name: "part", Value: scalar.Group.Div(number(groups))}, blocks}, groups*parts)
}

// accumulator is the accumulator of row r of the block in the i-th array.
func (b rowBlock) accumulator(i int, t scalar.Type) *scalar.Expr {
	return scalar.At(fmt.Sprintf("acc%d", i), t, b.r())
}

// accumulators declares the accumulators of a block.
func (b rowBlock) accumulators(acc, neutral *scalar.Expr) []scalar.Stmt {
	return []scalar.Stmt{scalar.Local{Array: scalar.Array{Name: acc.Name, Type: acc.Type, Len: b.rows}},
		b.each(scalar.Assign{To: acc, Value: neutral})}
}

// each is the loop over the rows of a block.
func (b rowBlock) each(body ...scalar.Stmt) scalar.Stmt {
	return scalar.Count("r", fuse.Column, number(0), b.count(), number(1), body...)
}

// loop is what was written for all rows together, then the loop over the rows of a block, with stores at its end.
func (b rowBlock) loop(w *writer, stores []scalar.Stmt) []scalar.Stmt {
	col := b.r()
	if !b.first {
		col = b.top().Add(col)
	}
	return append(w.outer, b.each(slices.Concat([]scalar.Stmt{scalar.Let{Name: "col", Value: col}}, w.inner, stores)...))
}

// nativeBlocks accumulates blocks of rows, which are neighbors in memory, one column after the other. It takes the
// blocks in which neighbors are neighbors in as many arrays as possible. Its sums have parts whose number does not
// depend on them.
func (l *groupLowering) nativeBlocks() Kernel {
	parts := l.parts(ceil(l.g.Rows, nativeBlock))
	share := ceil(l.g.Cols, parts)
	parts = ceil(l.g.Cols, share)
	var b rowBlock
	var w *writer
	var body []scalar.Stmt
	least := 0
	for i, candidate := range l.rowBlocks() {
		cw, code, scattered := l.accumulateBlock(candidate, parts, share)
		if i == 0 || scattered < least {
			b, w, body, least = candidate, cw, code, scattered
		}
		if least == 0 {
			break
		}
	}
	first := b.pass(w, parts, body)
	if parts == 1 {
		return Kernel{Name: "native", Passes: []Pass{first}}
	}
	return l.inParts(parts, first, l.wholeBlocks(b, parts))
}

// accumulateBlock is the code that accumulates a block of rows over a share of the columns. It counts the loads whose
// neighbors along the rows are not neighbors in memory.
func (l *groupLowering) accumulateBlock(b rowBlock, parts, share int) (w *writer, body []scalar.Stmt, scattered int) {
	g := l.g
	w, loads := l.newNativeWriter()
	var stores []scalar.Stmt
	part := variable("part", fuse.Row)
	for i, n := range g.Phases()[0] {
		in := n.Inputs[0]
		x := w.Value(in, graph.Unflatten(in.Shape, g.Full(b.row, graph.Var("reduced", g.Cols, fuse.Row))))
		acc := b.accumulator(i, x.Type)
		body = append(body, b.accumulators(acc, neutral(n))...)
		w.inner = append(w.inner, scalar.Assign{To: acc, Value: folded(n, acc, x)})
		if parts > 1 {
			to := w.scratch(i, x.Type, g.Rows*parts, part.Mul(number(g.Rows)).Add(b.top()).Add(b.r()))
			stores = append(stores, scalar.Assign{To: to, Value: acc})
		} else {
			w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: acc, Flat: b.row}
		}
	}
	from := part.Mul(number(share))
	body = append(body, scalar.Count("reduced", fuse.Row, from, scalar.Min(from.Add(number(share)), number(g.Cols)), number(1),
		b.loop(w, nil)...))
	w.outer, w.inner = nil, nil
	w.Walker = &fuse.Walker{Group: g, Inlined: l.r.Inlined, Fixed: w.Fixed, Load: w.Load, Let: w.let} // whose names are none of the loops'
	if parts == 1 {
		stores = w.stores(g.Stores, b.row)
	}
	return w, append(body, b.loop(w, stores)...), *loads
}

// wholeBlocks folds what nativeBlocks accumulated in parts.
func (l *groupLowering) wholeBlocks(b rowBlock, parts int) Pass {
	g := l.g
	w, _ := l.newNativeWriter()
	var declare, loops []scalar.Stmt
	for i, n := range g.Phases()[0] {
		t := n.Inputs[0].DType.Scalar()
		acc := b.accumulator(i, t)
		from := variable("from", fuse.Row).Mul(number(g.Rows)).Add(b.top()).Add(b.r())
		declare = append(declare, b.accumulators(acc, neutral(n))...)
		fold := b.each(scalar.Assign{To: acc, Value: folded(n, acc, w.scratch(i, t, g.Rows*parts, from))})
		loops = append(loops, scalar.Count("from", fuse.Row, number(0), number(parts), number(1), fold))
		w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: acc, Flat: b.row}
	}
	stores := w.stores(g.Stores, b.row)
	return b.pass(w, 1, slices.Concat(declare, loops, b.loop(w, stores)))
}
