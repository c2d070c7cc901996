package shaders

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
)

// neutral is the neutral element of a reduction.
func neutral(n *graph.Node) *scalar.Expr {
	t := n.Outputs[0].DType.Scalar()
	least := map[scalar.Type]*scalar.Expr{scalar.F32: scalar.F(-math.MaxFloat32), scalar.I32: scalar.I(math.MinInt32),
		scalar.U32: scalar.U(0)}
	largest := map[scalar.Type]*scalar.Expr{scalar.F32: scalar.F(math.MaxFloat32), scalar.I32: scalar.I(math.MaxInt32),
		scalar.U32: scalar.U(math.MaxUint32)}
	zero := map[scalar.Type]*scalar.Expr{scalar.F32: scalar.F(0), scalar.I32: scalar.I(0), scalar.U32: scalar.U(0)}
	return []map[scalar.Type]*scalar.Expr{graph.Sum: zero, graph.Max: least, graph.Min: largest}[fold(n)][t]
}

// folded is what a reduction makes of an accumulator and an element.
func folded(n *graph.Node, acc, x *scalar.Expr) *scalar.Expr {
	switch fold(n) {
	case graph.Max:
		return scalar.Max(acc, x)
	case graph.Min:
		return scalar.Min(acc, x)
	}
	return acc.Add(x)
}

func fold(n *graph.Node) graph.Fold { return n.Op.Kernel(n).(graph.Reduction).Fold }

// rowLoop is how a kernel shares the columns of a row: over the invocations of a workgroup, or not at all.
type rowLoop struct {
	invocations int
	cooperative bool // a workgroup a row; else an invocation a row
}

// reduceKernels are one invocation per row (naive), one workgroup per row and, for few rows, two passes of which the
// first computes partial results. GPUs get more partial results.
func (l *groupLowering) reduceKernels() []Kernel {
	ks := []Kernel{l.rowKernel("serial", rowLoop{workgroup, false})}
	for _, n := range []int{32, 256} {
		if l.g.Cols >= n && n <= l.lim.MaxInvocations && n*4*len(l.g.Nodes) <= l.lim.MaxWorkgroupMemory {
			ks = append(ks, l.rowKernel(fmt.Sprintf("workgroup%d", n), rowLoop{n, true}))
		}
	}
	return append(ks, l.splitKernels()...)
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

func (l *groupLowering) rowKernel(name string, loop rowLoop) Kernel {
	w, rows := l.newWriter(), l.g.Rows
	stores := w.row(loop)
	if !loop.cooperative {
		body := slices.Concat(unless("row", scalar.Group.Mul(number(loop.invocations)).Add(scalar.Lane), rows), w.outer, stores)
		return Kernel{Name: name, Passes: []Pass{w.pass(body, loop.invocations, ceil(rows, loop.invocations))}}
	}
	body := slices.Concat([]scalar.Stmt{scalar.Let{Name: "row", Value: scalar.Group}}, w.outer, loop.guard(stores))
	return Kernel{Name: name, Passes: []Pass{w.pass(body, loop.invocations, rows)}}
}

// row writes what computes a whole row and stores values with an element for each column. It returns the stores of the
// values with an element a row.
func (w *writer) row(loop rowLoop) []scalar.Stmt {
	g, row := w.l.g, graph.Var("row", w.l.g.Rows, fuse.Row)
	for _, phase := range g.Phases() {
		w.phase(phase, row, loop, loop.over(g.Cols))
	}
	rows, full := w.l.split()
	if len(full) > 0 {
		at, count := w.l.columns(row)
		w.inner = append(w.inner, w.stores(full, at...)...)
		w.closeLoop(loop.over(count))
	}
	return w.stores(rows, row)
}

// columns returns the positions that an iteration of the storing loop computes, and the number of iterations: one
// position, or where 16-bit floats are stored the two of a word.
func (l *groupLowering) columns(row graph.Index) (at []graph.Index, count int) {
	g := l.g
	if !g.StoresFloat16() {
		return []graph.Index{g.Full(row, graph.Var("col", g.Cols, fuse.Column))}, g.Cols
	}
	first := graph.Var("col", g.Cols/2, fuse.Column).Times(2)
	return []graph.Index{g.Full(row, first), g.Full(row, first.Plus(graph.Const(1)))}, g.Cols / 2
}

// over is the loop of an invocation over columns of a row, of so many.
func (l rowLoop) over(columns int) scalar.For { return l.count("col", columns) }

// count is the loop of an invocation over its share of numbers below n.
func (l rowLoop) count(name string, n int) scalar.For {
	if l.cooperative {
		return scalar.Count(name, fuse.Column, scalar.Lane, number(n), number(l.invocations))
	}
	return scalar.Count(name, fuse.Column, number(0), number(n), number(1))
}

// guard restricts stores to one of the invocations that share a row.
func (l rowLoop) guard(stores []scalar.Stmt) []scalar.Stmt {
	if !l.cooperative || len(stores) == 0 {
		return stores
	}
	return []scalar.Stmt{scalar.If{Condition: scalar.Lane.Equal(number(0)), Body: stores}}
}

// split separates the stored values with an element a row from those with one for each row and column.
func (l *groupLowering) split() (rows, full []*graph.Value) {
	for _, v := range l.g.Stores {
		if l.g.IsFull(v) {
			full = append(full, v)
		} else {
			rows = append(rows, v)
		}
	}
	return rows, full
}

// accumulate adds the loop that folds the inputs of a phase, and returns the accumulators.
func (w *writer) accumulate(phase []*graph.Node, row graph.Index, loop scalar.For) []*scalar.Expr {
	var accs []*scalar.Expr
	for _, n := range phase {
		in := n.Inputs[0]
		x := w.Value(in, graph.Unflatten(in.Shape, w.l.g.Full(row, graph.Var("col", w.l.g.Cols, fuse.Column))))
		w.lets++
		acc := scalar.Var(fmt.Sprintf("acc%d", w.lets), x.Type, fuse.Row)
		w.outer = append(w.outer, scalar.Declare{Name: acc.Name, Value: neutral(n)})
		w.inner = append(w.inner, scalar.Assign{To: acc, Value: folded(n, acc, x)})
		accs = append(accs, acc)
	}
	w.closeLoop(loop)
	return accs
}

// closeLoop makes the statements of the columns the body of a loop.
func (w *writer) closeLoop(loop scalar.For) {
	loop.Body = w.inner
	w.outer, w.inner = append(w.outer, loop), nil
	w.EndColumns()
}

// phase adds one loop over the columns and makes its reductions' results available to the row.
func (w *writer) phase(phase []*graph.Node, row graph.Index, loop rowLoop, over scalar.For) {
	for i, acc := range w.accumulate(phase, row, over) {
		w.fix(phase[i], row, w.combine(phase[i], acc, loop))
	}
}

// combine folds what the invocations of a workgroup have accumulated, if they share a row; it returns the result.
func (w *writer) combine(n *graph.Node, acc *scalar.Expr, loop rowLoop) *scalar.Expr {
	if !loop.cooperative {
		return acc
	}
	array := scalar.Array{Name: "sh" + acc.Name, Type: acc.Type, Len: loop.invocations}
	w.shared = append(w.shared, array)
	at := func(x *scalar.Expr) *scalar.Expr { return scalar.At(array.Name, array.Type, x) }
	distance := scalar.Var("s", scalar.U32, fuse.Row)
	fold := scalar.Assign{To: at(scalar.Lane), Value: folded(n, at(scalar.Lane), at(scalar.Lane.Add(distance)))}
	halves := scalar.For{Name: distance.Name, From: number(loop.invocations / 2), While: distance.More(number(0)),
		Next: distance.Right(1), Body: []scalar.Stmt{
			scalar.If{Condition: scalar.Lane.Less(distance), Body: []scalar.Stmt{fold}}, scalar.Barrier{}}}
	w.outer = append(w.outer, scalar.Assign{To: at(scalar.Lane), Value: acc}, scalar.Barrier{}, halves)
	return at(number(0))
}

// fix names the result of a reduction.
func (w *writer) fix(n *graph.Node, row graph.Index, x *scalar.Expr) {
	w.Fixed[n.Outputs[0]] = fuse.Fixed{Expr: w.let(fuse.Row, x), Flat: row}
}
