package shaders

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
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
func (c *context) splitKernels() []Kernel {
	g := c.g
	if _, full := c.split(); len(full) > 0 || len(g.Phases()) != 1 || g.Cols < 128 || g.Rows >= enoughInvocations {
		return nil
	}
	alone := rowLoop{workgroup, false}
	parts := max(2, min(256, g.Cols/16, 16384/g.Rows))
	ks := []Kernel{c.splitKernel(split{fmt.Sprint("split", parts), parts, alone, alone})}
	if s, ok := c.spread(); ok {
		ks = append(ks, c.splitKernel(s))
	}
	return slices.DeleteFunc(ks, func(k Kernel) bool { // several sums may make one result, and their partial results are more arrays than fusion counted
		return slices.ContainsFunc(k.Passes, func(p Pass) bool { return len(p.Args) > c.lim.MaxBindings })
	})
}

// spread is the split that keeps a GPU busy. Where columns are neighbors in memory a workgroup takes each part, else an
// invocation, whose neighbors have the same columns of neighboring rows.
func (c *context) spread() (s split, ok bool) {
	const most = 256
	g := c.g
	if c.lim.Software || c.lim.MaxInvocations < most || most*4*len(g.Phases()[0]) > c.lim.MaxWorkgroupMemory {
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

func (c *context) splitKernel(s split) Kernel {
	k := Kernel{Name: s.name, Passes: []Pass{c.partsPass(s), c.wholePass(s)}}
	for range c.g.Phases()[0] {
		k.Scratch = append(k.Scratch, int64(c.g.Rows*s.parts*4))
	}
	return k
}

// place is where a part lies in scratch memory: as they are written, the parts of a row together or the rows of a part.
func (s split) place(rows int) string {
	if s.first.cooperative {
		return fmt.Sprintf("row * %du + part", s.parts)
	}
	return fmt.Sprintf("part * %du + row", rows)
}

func (c *context) partsPass(s split) Pass {
	g, n := c.g, c.g.Rows*s.parts
	phase, w := g.Phases()[0], c.newWriter()
	head := fmt.Sprintf("  let id = group * %du + lane;\n  if (id >= %du) { return; }\n  let row = id %% %du;\n  let part = id / %du;\n", s.first.invocations, n, g.Rows, g.Rows)
	loop, groups, memory := fmt.Sprintf("var col = part; col < %du; col += %du", g.Cols, s.parts), ceil(n, s.first.invocations), 0
	if s.first.cooperative {
		head = fmt.Sprintf("  let row = group / %du;\n  let part = group %% %du;\n", s.parts, s.parts)
		loop, groups = fmt.Sprintf("var col = part * %du + lane; col < %du; col += %du", s.first.invocations, g.Cols, s.parts*s.first.invocations), n
	}
	var stores strings.Builder
	for i, acc := range w.accumulate(phase, graph.Var("row", g.Rows), loop) {
		sum, bytes := w.combine(phase[i], acc, s.first)
		memory += bytes
		fmt.Fprintf(&stores, "  %s[%s] = %s;\n", w.scratch(i, phase[i].Inputs[0].DType), s.place(g.Rows), sum)
	}
	return w.pass(head+w.outer.String()+s.first.guard(stores.String()), s.first.invocations, groups, memory)
}

func (c *context) wholePass(s split) Pass {
	g, w, memory := c.g, c.newWriter(), 0
	row := graph.Var("row", g.Rows)
	for i, n := range g.Phases()[0] {
		t := n.Inputs[0].DType
		x := fmt.Sprintf("%s[%s]", w.scratch(i, t), s.place(g.Rows))
		acc := fmt.Sprintf("acc%d", i)
		neutral, next := foldText(n.Op.Kernel(n).(graph.Reduction).Fold, t, acc, x)
		fmt.Fprintf(w.outer, "  var %s = %s;\n  for (var part = %s; part < %du; part += %s) { %s = %s; }\n", acc, neutral, s.last.first(), s.parts, s.last.step(), acc, next)
		sum, bytes := w.combine(n, acc, s.last)
		memory += bytes
		w.fix(n, row, sum)
	}
	stores := w.stores(g.Stores, row)
	if s.last.cooperative {
		return w.pass("  let row = group;\n"+w.outer.String()+s.last.guard(stores), s.last.invocations, g.Rows, memory)
	}
	head := fmt.Sprintf("  let row = group * %du + lane;\n  if (row >= %du) { return; }\n", s.last.invocations, g.Rows)
	return w.pass(head+w.outer.String()+stores, s.last.invocations, ceil(g.Rows, s.last.invocations), memory)
}
