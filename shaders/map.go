package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// elements describes the iterations of a Map kernel: the positions that one computes, the variable that numbers them,
// how many there are, and what one declares first. An iteration computes an element, or where 16-bit floats are stored
// the two of a word. The second may repeat the first at the end.
func (l *groupLowering) elements() (at []graph.Index, name string, count int, declare []scalar.Stmt) {
	n := l.g.Rows
	if !l.g.StoresFloat16() {
		return []graph.Index{graph.Var("row", n, fuse.Row)}, "row", n, nil
	}
	at, count, declare = pairOf("pair", "odd", fuse.Row, n, func(x graph.Index) graph.Index { return x })
	return at, "pair", count, declare
}

// pairOf returns the positions of the two elements of a word, and the number of pairs of n elements. The second element
// may repeat the first at the end, where it needs a declaration.
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

// mapKernels have one iteration an invocation (naive), or several: starting a workgroup costs a software adapter as
// much as hundreds of elements.
func (l *groupLowering) mapKernels() []Kernel {
	w := l.newWriter()
	at, name, count, declare := l.elements()
	stores := w.stores(l.g.Stores, at...)
	body := slices.Concat(declare, w.outer, stores)
	first := scalar.Group.Mul(number(workgroup)).Add(scalar.Lane)
	one := append(unless(name, first, count), body...)
	ks := []Kernel{{Name: "map", Passes: []Pass{w.pass(one, workgroup, ceil(count, workgroup))}}}
	for _, each := range []int{4, 32} {
		if groups := ceil(count, workgroup*each); groups > 1 {
			loop := scalar.Count(name, fuse.Row, first, number(count), number(groups*workgroup), body...)
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
