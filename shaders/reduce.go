package shaders

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
)

// foldText is a fold's neutral element and its application.
func foldText(f graph.Fold, t graph.DType, acc, x string) (neutral, next string) {
	switch f {
	case graph.Max:
		return map[graph.DType]string{graph.F32: "-3.4028234663852886e38f", graph.I32: "i32(-2147483648)", graph.U32: "0u"}[t], "max(" + acc + ", " + x + ")"
	case graph.Min:
		return map[graph.DType]string{graph.F32: "3.4028234663852886e38f", graph.I32: "2147483647i", graph.U32: "4294967295u"}[t], "min(" + acc + ", " + x + ")"
	default:
		return t.String() + "(0)", acc + " + " + x
	}
}

// rowLoop is how a kernel shares the columns of a row: over the invocations of a workgroup, or not at all.
type rowLoop struct {
	invocations int
	cooperative bool // a workgroup a row; else an invocation a row
}

// reduceKernels are: an invocation a row (naive); a workgroup a row; and for a few long rows two passes over parts.
func (c *context) reduceKernels() []Kernel {
	ks := []Kernel{c.rowKernel("serial", rowLoop{workgroup, false})}
	for _, n := range []int{32, 256} {
		if c.g.Cols >= n && n <= c.lim.MaxInvocations && n*4*len(c.g.Nodes) <= c.lim.MaxWorkgroupMemory {
			ks = append(ks, c.rowKernel(fmt.Sprintf("workgroup%d", n), rowLoop{n, true}))
		}
	}
	if parts := c.parts(); parts > 1 {
		ks = append(ks, c.splitKernel(parts))
	}
	return ks
}

func (c *context) rowKernel(name string, loop rowLoop) Kernel {
	g := c.g
	w := c.newWriter()
	row := graph.Var("row", g.Rows)
	memory := 0
	for _, phase := range g.Phases() {
		memory += w.phase(phase, row, loop, fmt.Sprintf("var col = %s; col < %du; col += %s", loop.first(), g.Cols, loop.step()))
	}
	rows, full := c.split()
	if len(full) > 0 {
		at, turns := c.columns(row)
		stores := w.stores(full, at...)
		w.inner.WriteString(stores)
		w.closeLoop(fmt.Sprintf("var col = %s; col < %du; col += %s", loop.first(), turns, loop.step()))
	}
	stores := w.stores(rows, row)
	if !loop.cooperative {
		body := fmt.Sprintf("  let row = group * %du + lane;\n  if (row >= %du) { return; }\n", loop.invocations, g.Rows) + w.outer.String() + stores
		return Kernel{Name: name, Passes: []Pass{w.pass(body, loop.invocations, ceil(g.Rows, loop.invocations), 0)}}
	}
	if stores != "" {
		stores = "  if (lane == 0u) {\n" + stores + "  }\n"
	}
	body := "  let row = group;\n" + w.outer.String() + stores
	return Kernel{Name: name, Passes: []Pass{w.pass(body, loop.invocations, g.Rows, memory)}}
}

// columns are the positions that a turn of the storing loop computes, of so many turns: one, or where halves are stored the
// two of a word.
func (c *context) columns(row graph.Index) (at []graph.Index, turns int) {
	g := c.g
	if !g.StoresHalves() {
		return []graph.Index{g.Full(row, graph.Var("col", g.Cols))}, g.Cols
	}
	first := graph.Var("col", g.Cols/2).Times(2)
	return []graph.Index{g.Full(row, first), g.Full(row, first.Plus(graph.Const(1)))}, g.Cols / 2
}

func (l rowLoop) first() string {
	if l.cooperative {
		return "lane"
	}
	return "0u"
}

func (l rowLoop) step() string {
	if l.cooperative {
		return fmt.Sprintf("%du", l.invocations)
	}
	return "1u"
}

// split separates the stored values with an element a row from those with one for each row and column.
func (c *context) split() (rows, full []*graph.Value) {
	for _, v := range c.g.Stores {
		if c.g.IsFull(v) {
			full = append(full, v)
		} else {
			rows = append(rows, v)
		}
	}
	return rows, full
}

// accumulate writes the loop that folds the inputs of a phase, and returns the accumulators' names.
func (w *writer) accumulate(phase []*graph.Node, row graph.Index, head string) []string {
	var accs []string
	for _, n := range phase {
		in := n.Inputs[0]
		x := w.Value(in, graph.Unflatten(in.Shape, w.c.g.Full(row, graph.Var("col", w.c.g.Cols))))
		w.lets++
		acc := fmt.Sprintf("acc%d", w.lets)
		neutral, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, in.DType, acc, x)
		fmt.Fprintf(w.outer, "  var %s = %s;\n", acc, neutral)
		fmt.Fprintf(w.inner, "  %s = %s;\n", acc, next)
		accs = append(accs, acc)
	}
	w.closeLoop(head)
	return accs
}

func (w *writer) closeLoop(head string) {
	fmt.Fprintf(w.outer, "  for (%s) {\n%s  }\n", head, w.inner)
	w.inner.Reset()
	w.ResetInner()
}

// phase writes one loop over the columns and makes its reductions' results available to the row; it returns the bytes
// of workgroup memory that it declared.
func (w *writer) phase(phase []*graph.Node, row graph.Index, loop rowLoop, head string) (memory int) {
	for i, acc := range w.accumulate(phase, row, head) {
		n := phase[i]
		t := n.Inputs[0].DType
		if loop.cooperative {
			memory += loop.invocations * 4
			sh := "sh" + acc
			fmt.Fprintf(&w.declarations, "var<workgroup> %s: array<%v, %d>;\n", sh, t, loop.invocations)
			_, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, t, sh+"[lane]", sh+"[lane + s]")
			fmt.Fprintf(w.outer, "  %s[lane] = %s;\n  workgroupBarrier();\n", sh, acc)
			fmt.Fprintf(w.outer, "  for (var s = %du; s > 0u; s = s >> 1u) {\n    if (lane < s) { %s[lane] = %s; }\n    workgroupBarrier();\n  }\n", loop.invocations/2, sh, next)
			acc = sh + "[0]"
		}
		w.fix(n, row, acc)
	}
	return memory
}

func (w *writer) fix(n *graph.Node, row graph.Index, expr string) {
	w.lets++
	name := fmt.Sprintf("r%d", w.lets)
	fmt.Fprintf(w.outer, "  let %s = %s;\n", name, expr)
	w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: name, Flat: row}
}

// parts is the number of pieces that a row is cut into when rows are few and long: 0 when that does not apply.
func (c *context) parts() int {
	g := c.g
	if _, full := c.split(); len(full) > 0 || len(g.Phases()) != 1 || g.Cols < 128 || g.Rows >= 65536 {
		return 0
	}
	return max(2, min(256, g.Cols/16, 16384/g.Rows))
}

// splitKernel folds every parts-th column in a first pass, and the parts, in order, in a second.
func (c *context) splitKernel(parts int) Kernel {
	g := c.g
	row := graph.Var("row", g.Rows)
	phase := g.Phases()[0]
	k := Kernel{Name: fmt.Sprintf("split%d", parts)}
	w := c.newWriter()
	var stores strings.Builder
	for i, acc := range w.accumulate(phase, row, fmt.Sprintf("var col = part; col < %du; col += %du", g.Cols, parts)) {
		fmt.Fprintf(&stores, "  %s[id] = %s;\n", w.scratch(i, phase[i].Inputs[0].DType), acc)
		k.Scratch = append(k.Scratch, int64(g.Rows*parts*4))
	}
	n := g.Rows * parts
	body := fmt.Sprintf("  let id = group * %du + lane;\n  if (id >= %du) { return; }\n  let row = id %% %du;\n  let part = id / %du;\n", workgroup, n, g.Rows, g.Rows)
	k.Passes = append(k.Passes, w.pass(body+w.outer.String()+stores.String(), workgroup, ceil(n, workgroup), 0))

	w = c.newWriter()
	for i, node := range phase {
		t := node.Inputs[0].DType
		x := fmt.Sprintf("%s[part * %du + row]", w.scratch(i, t), g.Rows)
		acc := fmt.Sprintf("acc%d", i)
		neutral, next := foldText(node.Op.Kernel(node).(graph.Reduction).Fold, t, acc, x)
		fmt.Fprintf(w.outer, "  var %s = %s;\n  for (var part = 0u; part < %du; part++) { %s = %s; }\n", acc, neutral, parts, acc, next)
		w.fix(node, row, acc)
	}
	tail := w.stores(g.Stores, row)
	body = fmt.Sprintf("  let row = group * %du + lane;\n  if (row >= %du) { return; }\n", workgroup, g.Rows)
	k.Passes = append(k.Passes, w.pass(body+w.outer.String()+tail, workgroup, ceil(g.Rows, workgroup), 0))
	return k
}
