package shaders

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// nativeElements is the number of elements that a workgroup computes on a CPU: enough to be worth handing to a thread.
const nativeElements = 1 << 13

// newNativeWriter is a writer whose loads stay inside their arrays. It counts the loads whose neighbors along col are
// not neighbors in memory.
func (l *groupLowering) newNativeWriter() (w *writer, scattered *int) {
	w, scattered = l.newWriter(), new(int)
	w.Load = func(v *graph.Value, at []graph.Index) *scalar.Expr {
		flat := graph.Flatten(v.Shape, at)
		if flat.Divides("col") {
			*scattered++
		}
		if n := v.Shape.Len(); flat.Bound() > n {
			flat = graph.IndexOf(scalar.Min(flat.Expr(), number(n-1)), n)
		}
		return l.element(w.binding(v), v.DType, flat)
	}
	return w, scattered
}

// nativeMap is a loop over rows around a loop over columns, where the columns are chosen so that neighbors are
// neighbors in as many arrays as possible.
func (l *groupLowering) nativeMap() Kernel {
	var w *writer
	var body []scalar.Stmt
	best, least := 0, 0
	for i, cols := range l.columnCounts() {
		candidate, text, scattered := l.mapLoops(cols)
		if i == 0 || scattered < least {
			w, body, best, least = candidate, text, cols, scattered
		}
		if least == 0 {
			break
		}
	}
	count := l.g.Rows / best
	if count == 1 {
		count = best
	}
	return Kernel{Name: "native", Passes: []Pass{w.nativePass(body, ceil(count, l.share(best)))}}
}

// share is the number of rows, or of columns where there is one row, that a workgroup of a map computes.
func (l *groupLowering) share(cols int) int {
	if cols == l.g.Rows {
		return nativeElements
	}
	return max(1, nativeElements/cols)
}

// columnCounts are the possible numbers of columns of a map, the largest first: all elements, and the products of the
// last extents of each shape in the kernel.
func (l *groupLowering) columnCounts() []int {
	counts := []int{l.g.Rows}
	add := func(v *graph.Value) {
		n := 1
		for _, extent := range slices.Backward(v.Shape) {
			if n *= extent; n >= 8 && l.g.Rows%n == 0 && !slices.Contains(counts, n) {
				counts = append(counts, n)
			}
		}
	}
	for _, v := range l.g.Stores {
		add(v)
	}
	for _, v := range l.g.Loads {
		add(v)
	}
	for _, n := range l.g.Nodes {
		for _, v := range n.Inputs {
			add(v)
		}
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	if l.g.StoresFloat16() {
		counts = slices.DeleteFunc(counts, func(n int) bool { return n%2 != 0 && n != l.g.Rows })
	}
	return counts
}

// mapLoops writes a map over rows of so many columns.
func (l *groupLowering) mapLoops(cols int) (w *writer, body []scalar.Stmt, scattered int) {
	w, loads := l.newNativeWriter()
	n := l.g.Rows
	position := func(col graph.Index) graph.Index {
		if cols == n {
			return col
		}
		return graph.Var("row", n/cols, fuse.Row).Times(cols).Plus(col)
	}
	at, count, declare := []graph.Index{position(graph.Var("col", cols, fuse.Column))}, cols, []scalar.Stmt(nil)
	if l.g.StoresFloat16() {
		at, count, declare = pairOf("col", "odd", fuse.Column, cols, position)
	}
	stores := w.stores(l.g.Stores, at...)
	columns := slices.Concat(declare, w.inner, stores)
	share := l.share(cols)
	if cols == n {
		if l.g.StoresFloat16() {
			share /= 2
		}
		return w, append(w.outer, shareOf("col", share, count, columns...)), *loads
	}
	loop := scalar.Count("col", fuse.Column, number(0), number(count), number(1), columns...)
	return w, []scalar.Stmt{shareOf("row", share, n/cols, append(w.outer, loop)...)}, *loads
}

// shareOf is the loop of a workgroup over its share of numbers below n.
func shareOf(name string, share, n int, body ...scalar.Stmt) scalar.For {
	from := scalar.Group.Mul(number(share))
	return scalar.Count(name, fuse.Row, from, scalar.Min(from.Add(number(share)), number(n)), number(1), body...)
}
