package shaders

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
)

// nativeReduce is a reduction on a CPU, with a vector along the neighbors in memory: along columns it accumulates each
// row in parts of a vector, across columns it accumulates a block of rows at once. Few long rows are folded in parts by
// several workgroups, then as a whole in a fixed order. All of that depends on the shape alone, never on the number of
// threads.
func (c *context) nativeReduce() (Kernel, error) {
	_, full := c.split()
	single := len(full) == 0 && len(c.g.Phases()) == 1
	switch {
	case single && c.g.Along() && c.parts(c.g.Rows) > 1:
		return c.nativeParts()
	case single && !c.g.Along():
		return c.nativeBlocks()
	}
	return c.nativeRows()
}

// parts is the number of parts of each row, where so many pieces of work are in all parts of one size.
func (c *context) parts(pieces int) int {
	const enough = 32 // pieces of work for all threads
	return max(1, min(enough/pieces, c.g.Rows*c.g.Cols/nativeTurns, c.g.Cols))
}

// nativeRows computes whole rows.
func (c *context) nativeRows() (Kernel, error) {
	g := c.g
	w, _ := c.newNativeWriter()
	row, alone := graph.Var("row", g.Rows), rowLoop{1, false}
	for _, phase := range g.Phases() {
		w.phase(phase, row, alone, fmt.Sprintf("var col = 0u; col < %du; col += 1u", g.Cols))
	}
	rows, full := c.split()
	if len(full) > 0 {
		at, turns := c.columns(row)
		w.inner.WriteString(w.stores(full, at...))
		w.closeLoop(fmt.Sprintf("var col = 0u; col < %du; col += 1u", turns))
	}
	stores := w.stores(rows, row)
	share := max(1, nativeTurns/g.Cols)
	body := fmt.Sprintf("  for (var row = group * %du; row < min(group * %du + %du, %du); row += 1u) {\n%s%s  }\n", share, share, share, g.Rows, w.outer, stores)
	p, err := w.nativePass(body, ceil(g.Rows, share))
	return Kernel{Name: "native", Passes: []Pass{p}}, err
}

// nativeParts folds the parts of each row in a first pass, and the results of a row in a second.
func (c *context) nativeParts() (Kernel, error) {
	g, parts := c.g, c.parts(c.g.Rows)
	phase := g.Phases()[0]
	share := ceil(g.Cols, parts)
	parts = ceil(g.Cols, share)
	w, _ := c.newNativeWriter()
	var stores strings.Builder
	loop := fmt.Sprintf("var col = group %% %du * %du; col < min(group %% %du * %du + %du, %du); col += 1u", parts, share, parts, share, share, g.Cols)
	for i, acc := range w.accumulate(phase, graph.Var("row", g.Rows), loop) {
		fmt.Fprintf(&stores, "  %s[group] = %s;\n", w.scratch(i, phase[i].Inputs[0].DType), acc)
	}
	first, err := w.nativePass(fmt.Sprintf("  let row = group / %du;\n", parts)+w.outer.String()+stores.String(), g.Rows*parts)
	if err != nil {
		return Kernel{}, err
	}
	w, _ = c.newNativeWriter()
	row := graph.Var("row", g.Rows)
	for i, n := range phase {
		w.fold(n, i, fmt.Sprintf("row * %du + part", parts), parts, row)
	}
	stored := w.stores(g.Stores, row)
	body := fmt.Sprintf("  for (var row = 0u; row < %du; row += 1u) {\n%s%s  }\n", g.Rows, w.outer, stored)
	last, err := w.nativePass(body, 1)
	return c.inParts(parts, first, last), err
}

// fold writes the loop that folds the parts of a reduction, and fixes its result.
func (w *writer) fold(n *graph.Node, scratch int, place string, parts int, row graph.Index) {
	t := n.Inputs[0].DType
	acc := fmt.Sprintf("whole%d", scratch)
	neutral, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, t, acc, fmt.Sprintf("%s[%s]", w.scratch(scratch, t), place))
	fmt.Fprintf(w.outer, "  var %s = %s;\n  for (var part = 0u; part < %du; part += 1u) { %s = %s; }\n", acc, neutral, parts, acc, next)
	w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: acc, Flat: row}
}

func (c *context) inParts(parts int, passes ...Pass) Kernel {
	k := Kernel{Name: "native", Passes: passes}
	for range c.g.Phases()[0] {
		k.Scratch = append(k.Scratch, int64(c.g.Rows*parts*4))
	}
	return k
}

// nativeBlock is the largest number of rows that a workgroup accumulates at once: their sums stay in the first cache.
const nativeBlock = 512

// rowBlock is the block of rows that are accumulated together. In the loop over a block's rows col counts rows, from the
// first one of all or of the block. So what depends on the reduced column alone is computed once for all of them.
type rowBlock struct {
	rows   int
	blocks int
	share  int // blocks of a workgroup
	row    graph.Index
	col    string // of row r of the block
}

// rowBlocks are the possible blocks: of nativeBlock rows, and of rows that divide the last extents of a shape.
func (c *context) rowBlocks() []rowBlock {
	n := c.g.Rows
	block := func(rows int) rowBlock {
		return rowBlock{rows: rows, blocks: ceil(n, rows), share: max(1, nativeTurns/(rows*c.g.Cols)), row: graph.Var("col", n), col: "top + r"}
	}
	out := []rowBlock{block(nativeBlock)}
	for _, count := range c.columnCounts() {
		rows := count / ceil(count, nativeBlock)
		if count == n || rows < 32 || count%rows != 0 {
			continue
		}
		b := block(rows)
		b.row, b.col = graph.Var("line", n/rows).Times(rows).Plus(graph.Var("col", rows)), "r"
		if c.indexes(b.row) {
			out = append(out, b)
		}
	}
	return out
}

// indexes reports whether the row is found again in the coordinates of every value that has a row's elements.
func (c *context) indexes(row graph.Index) bool {
	found := func(v *graph.Value) bool {
		return v.Shape.Len() != c.g.Rows || graph.Flatten(v.Shape, graph.Unflatten(v.Shape, row)).Equal(row)
	}
	for _, n := range c.g.Nodes {
		for _, v := range slices.Concat(n.Inputs, n.Outputs) {
			if !found(v) {
				return false
			}
		}
	}
	return true
}

// pass writes the pass of a workgroup, by a text for each of its blocks and part.
func (b rowBlock) pass(w *writer, parts int, text string) (Pass, error) {
	groups := ceil(b.blocks, b.share)
	rows := fmt.Sprintf("%du", b.rows)
	if w.c.g.Rows%b.rows != 0 {
		rows = fmt.Sprintf("min(%du, %du - top)", b.rows, w.c.g.Rows)
	}
	first := fmt.Sprintf("group %% %du * %du", groups, b.share)
	body := fmt.Sprintf("  let part = group / %du;\n  for (var line = %s; line < min(%s + %du, %du); line += 1u) {\n  let top = line * %du;\n  let rows = %s;\n%s  }\n",
		groups, first, first, b.share, b.blocks, b.rows, rows, text)
	return w.nativePass(body, groups*parts)
}

// accumulators declares those of a block.
func (b rowBlock) accumulators(name string, t graph.DType, neutral string) string {
	return fmt.Sprintf("  var %s: array<%v, %d>;\n  for (var r = 0u; r < rows; r += 1u) { %s[r] = %s; }\n", name, t, b.rows, name, neutral)
}

// loop is what was written for all rows together, then the loop over the rows of a block, with stores at its end.
func (b rowBlock) loop(w *writer, stores string) string {
	return fmt.Sprintf("%s  for (var r = 0u; r < rows; r += 1u) {\n  let col = %s;\n%s%s  }\n", w.outer, b.col, w.inner, stores)
}

// nativeBlocks accumulates blocks of rows, which are neighbors in memory, one column after the other. It takes the blocks
// in which neighbors are neighbors in as many arrays as possible. Its sums have parts whose number does not depend on them.
func (c *context) nativeBlocks() (Kernel, error) {
	parts := c.parts(ceil(c.g.Rows, nativeBlock))
	share := ceil(c.g.Cols, parts)
	parts = ceil(c.g.Cols, share)
	var b rowBlock
	var w *writer
	var body string
	least := 0
	for i, candidate := range c.rowBlocks() {
		cw, text, scattered := c.accumulateBlock(candidate, parts, share)
		if i == 0 || scattered < least {
			b, w, body, least = candidate, cw, text, scattered
		}
		if least == 0 {
			break
		}
	}
	first, err := b.pass(w, parts, body)
	if err != nil || parts == 1 {
		return Kernel{Name: "native", Passes: []Pass{first}}, err
	}
	last, err := c.wholeBlocks(b, parts)
	return c.inParts(parts, first, last), err
}

// accumulateBlock writes the text that accumulates a block of rows over a share of the columns. It counts the loads whose
// neighbors along the rows are not neighbors in memory.
func (c *context) accumulateBlock(b rowBlock, parts, share int) (w *writer, body string, scattered int) {
	g := c.g
	w, count := c.newNativeWriter()
	var declare, stores strings.Builder
	for i, n := range g.Phases()[0] {
		in := n.Inputs[0]
		x := w.Value(in, graph.Unflatten(in.Shape, g.Full(b.row, graph.Var("reduced", g.Cols))))
		acc := fmt.Sprintf("acc%d", i)
		neutral, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, in.DType, acc+"[r]", x)
		declare.WriteString(b.accumulators(acc, in.DType, neutral))
		fmt.Fprintf(w.inner, "  %s[r] = %s;\n", acc, next)
		if parts > 1 {
			fmt.Fprintf(&stores, "  %s[part * %du + top + r] = %s[r];\n", w.scratch(i, in.DType), g.Rows, acc)
		} else {
			w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: acc + "[r]", Flat: b.row}
		}
	}
	loops := fmt.Sprintf("  for (var reduced = part * %du; reduced < min(part * %du + %du, %du); reduced += 1u) {\n%s  }\n",
		share, share, share, g.Cols, b.loop(w, ""))
	w.outer.Reset()
	w.inner.Reset()
	w.Walker = &fuse.Walker{Group: g, Inlined: c.r.Inlined, Fixed: w.Fixed, Load: w.Load, Let: w.let} // whose names are none of the loops'
	if parts == 1 {
		stores.WriteString(w.stores(g.Stores, b.row))
	}
	return w, declare.String() + loops + b.loop(w, stores.String()), *count
}

// wholeBlocks folds what nativeBlocks accumulated in parts.
func (c *context) wholeBlocks(b rowBlock, parts int) (Pass, error) {
	g := c.g
	w, _ := c.newNativeWriter()
	var declare, loops strings.Builder
	for i, n := range g.Phases()[0] {
		t, acc := n.Inputs[0].DType, fmt.Sprintf("acc%d", i)
		neutral, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, t, acc+"[r]", fmt.Sprintf("%s[from * %du + top + r]", w.scratch(i, t), g.Rows))
		declare.WriteString(b.accumulators(acc, t, neutral))
		fmt.Fprintf(&loops, "  for (var from = 0u; from < %du; from += 1u) { for (var r = 0u; r < rows; r += 1u) { %s[r] = %s; } }\n", parts, acc, next)
		w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: acc + "[r]", Flat: b.row}
	}
	stores := w.stores(g.Stores, b.row)
	return b.pass(w, 1, declare.String()+loops.String()+b.loop(w, stores))
}
