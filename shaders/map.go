package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// elements are the positions that an invocation of a Map kernel computes, its turn of so many, and what it must declare
// first: one, or where 16-bit floats are stored the two of a word, of which the second may repeat the first at the end.
func (c *context) elements() (at []graph.Index, turn string, turns int, declare []scalar.Stmt) {
	n := c.g.Rows
	if !c.g.StoresFloat16() {
		return []graph.Index{graph.Var("row", n, fuse.Row)}, "row", n, nil
	}
	at, turns, declare = pairOf("pair", "odd", fuse.Row, n, func(x graph.Index) graph.Index { return x })
	return at, "pair", turns, declare
}

// pairOf are the positions of the two elements of a word, of n elements: there are so many pairs. The second element may
// repeat the first one at the end, where it needs a declaration.
func pairOf(pair, odd string, depth, n int, position func(graph.Index) graph.Index) (at []graph.Index, pairs int, declare []scalar.Stmt) {
	pairs = ceil(n, 2)
	first := graph.Var(pair, pairs, depth).Times(2)
	switch {
	case n == 1:
		at = []graph.Index{position(first)}
	case n%2 == 0:
		at = []graph.Index{position(first), position(first.Plus(graph.Const(1)))}
	default:
		at = []graph.Index{position(first), position(graph.Var(odd, n, depth))}
		second := variable(pair, depth).Mul(number(2)).Add(number(1))
		declare = []scalar.Stmt{scalar.Let{Name: odd, Value: scalar.Min(second, number(n-1))}}
	}
	return at, pairs, declare
}

// mapKernels take one turn an invocation (naive), or several: starting a workgroup costs a software adapter as much
// as hundreds of elements.
func (c *context) mapKernels() []Kernel {
	w := c.newWriter()
	at, turn, turns, declare := c.elements()
	stores := w.stores(c.g.Stores, at...)
	body := slices.Concat(declare, w.outer, stores)
	first := scalar.Group.Mul(number(workgroup)).Add(scalar.Lane)
	one := append(unless(turn, first, turns), body...)
	ks := []Kernel{{Name: "map", Passes: []Pass{w.pass(one, workgroup, ceil(turns, workgroup))}}}
	for _, each := range []int{4, 32} {
		if groups := ceil(turns, workgroup*each); groups > 1 {
			loop := scalar.Count(turn, fuse.Row, first, number(turns), number(groups*workgroup), body...)
			ks = append(ks, Kernel{Name: fmt.Sprintf("map%d", each), Passes: []Pass{w.pass([]scalar.Stmt{loop}, workgroup, groups)}})
		}
	}
	return ks
}

// unless declares a variable, and leaves the kernel unless it is below a bound.
func unless(name string, value *scalar.Expr, below int) []scalar.Stmt {
	x := scalar.Var(name, scalar.U32, fuse.Row)
	return []scalar.Stmt{scalar.Let{Name: name, Value: value}, scalar.If{Condition: x.AtLeast(number(below)),
		Body: []scalar.Stmt{scalar.Return{}}}}
}
