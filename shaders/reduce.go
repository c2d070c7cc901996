package shaders

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/target"
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

// reduceKernels are one invocation per row (naive), one workgroup per row and, for few rows, two passes of which the
// first computes partial results. GPUs get more partial results.
func (c *context) reduceKernels() []Kernel {
	ks := []Kernel{c.rowKernel("serial", rowLoop{workgroup, false})}
	for _, n := range []int{32, 256} {
		if c.g.Cols >= n && n <= c.lim.MaxInvocations && n*4*len(c.g.Nodes) <= c.lim.MaxWorkgroupMemory {
			ks = append(ks, c.rowKernel(fmt.Sprintf("workgroup%d", n), rowLoop{n, true}))
		}
	}
	return append(ks, c.splitKernels()...)
}

// longRow is the number of columns from which a large workgroup per row is worth its barriers.
const longRow = 1024

// enoughRows is the number of rows that keeps a GPU busy with a workgroup each; with an invocation each it takes
// enoughInvocations.
const enoughRows, enoughInvocations = 2048, 65536

// likely lists the kinds of variants from the likely fastest to the likely slowest. On a GPU neighboring invocations
// should read neighboring elements, and there should be enough invocations.
func likely(g *fuse.Group, lim target.Limits) []string {
	workgroup := []string{"workgroup32"}
	if g.Cols >= longRow {
		workgroup = []string{"workgroup256", "workgroup32"}
	}
	switch {
	case lim.Software && g.Rows < 4096:
		return []string{"split", "serial"}
	case lim.Software:
		return []string{"serial"}
	case g.Along() && g.Rows >= enoughRows:
		return append(workgroup, "serial")
	case g.Along():
		return append([]string{"spread"}, append(workgroup, "serial")...)
	case g.Rows >= enoughInvocations:
		return []string{"serial"}
	case g.Rows >= enoughRows:
		return []string{"spread", "split", "serial"}
	}
	return append([]string{"spread", "split"}, append(workgroup, "serial")...)
}

// reduceDefault is the variant that is likely to be good.
func reduceDefault(ks []Kernel, g *fuse.Group, lim target.Limits) int {
	for _, name := range likely(g, lim) {
		if i := slices.IndexFunc(ks, func(k Kernel) bool { return strings.HasPrefix(k.Name, name) }); i >= 0 {
			return i
		}
	}
	return 0
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
	body := "  let row = group;\n" + w.outer.String() + loop.guard(stores)
	return Kernel{Name: name, Passes: []Pass{w.pass(body, loop.invocations, g.Rows, memory)}}
}

// columns are the positions that a turn of the storing loop computes, of so many turns: one, or where 16-bit floats are
// stored the two of a word.
func (c *context) columns(row graph.Index) (at []graph.Index, turns int) {
	g := c.g
	if !g.StoresFloat16() {
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

// guard restricts stores to one of the invocations that share a row.
func (l rowLoop) guard(stores string) string {
	if !l.cooperative || stores == "" {
		return stores
	}
	return "  if (lane == 0u) {\n" + stores + "  }\n"
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
		sum, bytes := w.combine(phase[i], acc, loop)
		memory += bytes
		w.fix(phase[i], row, sum)
	}
	return memory
}

// combine folds what the invocations of a workgroup have accumulated, if they share a row; it returns the result's
// expression and the bytes of workgroup memory that it declared.
func (w *writer) combine(n *graph.Node, acc string, loop rowLoop) (expr string, memory int) {
	if !loop.cooperative {
		return acc, 0
	}
	t, sh := n.Inputs[0].DType, "sh"+acc
	fmt.Fprintf(&w.declarations, "var<workgroup> %s: array<%v, %d>;\n", sh, t, loop.invocations)
	_, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, t, sh+"[lane]", sh+"[lane + s]")
	fmt.Fprintf(w.outer, "  %s[lane] = %s;\n  workgroupBarrier();\n", sh, acc)
	fmt.Fprintf(w.outer, "  for (var s = %du; s > 0u; s = s >> 1u) {\n    if (lane < s) { %s[lane] = %s; }\n    workgroupBarrier();\n  }\n", loop.invocations/2, sh, next)
	return sh + "[0]", loop.invocations * 4
}

func (w *writer) fix(n *graph.Node, row graph.Index, expr string) {
	w.lets++
	name := fmt.Sprintf("r%d", w.lets)
	fmt.Fprintf(w.outer, "  let %s = %s;\n", name, expr)
	w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: name, Flat: row}
}
