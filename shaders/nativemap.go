package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// nativeTurns is the number of elements that a workgroup computes on a CPU: enough to be worth handing to a thread.
const nativeTurns = 1 << 13

// nativePass is a pass that one invocation a workgroup computes, as C. Loads whose place is not known to lie inside
// their array are clamped by newNativeWriter.
func (w *writer) nativePass(body string, groups int) (Pass, error) {
	p := w.pass(body, 1, groups, 0)
	k, err := native.Translate(p.WGSL, native.Options{Inside: true, Unordered: true})
	if err != nil {
		return p, fmt.Errorf("%s: %w", Label(w.c.g), err)
	}
	p.WGSL, p.Inside = k.C, true
	return p, nil
}

// newNativeWriter is a writer whose loads stay inside their arrays. It counts the loads whose neighbors along col are
// not neighbors in memory.
func (c *context) newNativeWriter() (w *writer, scattered *int) {
	w, scattered = c.newWriter(), new(int)
	w.Load = func(v *graph.Value, at []graph.Index) string {
		flat := graph.Flatten(v.Shape, at)
		if flat.Divides("col") {
			*scattered++
		}
		if n := v.Shape.Len(); flat.Bound() > n {
			flat = graph.Var(fmt.Sprintf("min(%v, %du)", flat, n-1), n)
		}
		return element(w.binding(v), v.DType, flat)
	}
	return w, scattered
}

// nativeMap is a loop over rows around a loop over columns, where the columns are chosen so that neighbors are
// neighbors in as many arrays as possible.
func (c *context) nativeMap() (Kernel, error) {
	var w *writer
	var body string
	best, least := 0, 0
	for i, cols := range c.columnCounts() {
		candidate, text, scattered := c.mapLoops(cols)
		if i == 0 || scattered < least {
			w, body, best, least = candidate, text, cols, scattered
		}
		if least == 0 {
			break
		}
	}
	turns := c.g.Rows / best
	if turns == 1 {
		turns = best
	}
	p, err := w.nativePass(body, ceil(turns, c.share(best)))
	return Kernel{Name: "native", Passes: []Pass{p}}, err
}

// share is the number of rows, or of columns where there is one row, that a workgroup of a map computes.
func (c *context) share(cols int) int {
	if cols == c.g.Rows {
		return nativeTurns
	}
	return max(1, nativeTurns/cols)
}

// columnCounts are the possible numbers of columns of a map, the largest first: all elements, and the products of the
// last extents of each shape in the kernel.
func (c *context) columnCounts() []int {
	counts := []int{c.g.Rows}
	add := func(v *graph.Value) {
		n := 1
		for _, extent := range slices.Backward(v.Shape) {
			if n *= extent; n >= 8 && c.g.Rows%n == 0 && !slices.Contains(counts, n) {
				counts = append(counts, n)
			}
		}
	}
	for _, v := range c.g.Stores {
		add(v)
	}
	for _, v := range c.g.Loads {
		add(v)
	}
	for _, n := range c.g.Nodes {
		for _, v := range n.Inputs {
			add(v)
		}
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	if c.g.StoresFloat16() {
		counts = slices.DeleteFunc(counts, func(n int) bool { return n%2 != 0 && n != c.g.Rows })
	}
	return counts
}

// mapLoops writes a map over rows of so many columns.
func (c *context) mapLoops(cols int) (w *writer, body string, scattered int) {
	w, count := c.newNativeWriter()
	n := c.g.Rows
	position := func(col graph.Index) graph.Index {
		if cols == n {
			return col
		}
		return graph.Var("row", n/cols).Times(cols).Plus(col)
	}
	at, turns, declare := c.pairs(position, cols)
	stores := w.stores(c.g.Stores, at...)
	if cols == n {
		share := c.share(cols)
		if c.g.StoresFloat16() {
			share /= 2
		}
		body = fmt.Sprintf("%s  for (var col = group * %du; col < min(group * %du + %du, %du); col += 1u) {\n%s%s%s  }\n",
			w.outer, share, share, share, turns, declare, w.inner, stores)
		return w, body, *count
	}
	share := c.share(cols)
	body = fmt.Sprintf("  for (var row = group * %du; row < min(group * %du + %du, %du); row += 1u) {\n%s  for (var col = 0u; col < %du; col += 1u) {\n%s%s%s  }\n  }\n",
		share, share, share, n/cols, w.outer, turns, declare, w.inner, stores)
	return w, body, *count
}

// pairs are the positions of a turn of the loop over columns, of so many turns, and what the turn declares first: one
// position, or the two of a word where 16-bit floats are stored, of which the second may repeat the first at the end.
func (c *context) pairs(position func(col graph.Index) graph.Index, cols int) (at []graph.Index, turns int, declare string) {
	if !c.g.StoresFloat16() {
		return []graph.Index{position(graph.Var("col", cols))}, cols, ""
	}
	turns = ceil(cols, 2)
	first := graph.Var("col", turns).Times(2)
	switch {
	case cols == 1:
		return []graph.Index{position(first)}, turns, ""
	case cols%2 == 0:
		return []graph.Index{position(first), position(first.Plus(graph.Const(1)))}, turns, ""
	}
	return []graph.Index{position(first), position(graph.Var("c0", cols))}, turns, fmt.Sprintf("  let c0 = min(col * 2u + 1u, %du);\n", cols-1)
}
