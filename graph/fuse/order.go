package fuse

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// finish traces every group once more, now that all are final, and drops those that nothing reads.
func (f *fuser) finish() []*Group {
	seen := map[*Group]bool{}
	var groups []*Group
	for _, n := range f.g.Nodes {
		if g := f.group[n]; g != nil && !seen[g] {
			seen[g] = true
			if !f.trace(g) {
				panic(fmt.Sprintf("fuse: %s is no kernel on its own", n.Op.Name()))
			}
			if len(g.Stores) > 0 {
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// order sorts the groups so that values are stored before they are loaded and, where it can be, variables are loaded
// before they are overwritten.
func (f *fuser) order(groups []*Group) {
	storedBy := map[*graph.Value]*Group{}
	for _, g := range groups {
		for _, v := range g.Stores {
			storedBy[v] = g
		}
	}
	before := map[*Group][]*Group{} // g → groups that must precede it
	for _, g := range groups {
		for _, v := range g.Loads {
			if p := storedBy[v]; p != nil && p != g {
				before[g] = append(before[g], p)
			}
		}
	}
	readers := map[*graph.Value][]*Group{}
	for _, g := range groups {
		for _, v := range g.Loads {
			readers[v] = append(readers[v], g)
		}
	}
	kept := map[*graph.Value]bool{} // variables whose old contents are needed when all kernels are done
	for _, o := range f.g.Outputs {
		kept[f.alias.Base(o.Value)] = true
	}
	for _, a := range f.g.Assigns {
		kept[f.alias.Base(a.Value)] = true
	}
	for _, a := range f.g.Assigns {
		w := storedBy[a.Value]
		if w == nil || kept[a.Variable] || f.assigned[a.Value] != a.Variable {
			continue
		}
		f.direct(a, w, readers[a.Variable], before)
	}
	for _, g := range groups {
		if Update(g) != nil && f.directs[g.Stores[0]] == nil {
			panic(fmt.Sprintf("fuse: %s replaces no variable", g.Nodes[0].Op.Name()))
		}
	}
	f.ordered = topological(groups, before, f.positions(groups, storedBy))
}

// direct lets group w write its result over the variable, if no reader of the old contents would come later.
func (f *fuser) direct(a graph.Assign, w *Group, readers []*Group, before map[*Group][]*Group) {
	if slices.Contains(w.Loads, a.Variable) && !slices.Contains(w.InPlace[a.Value], a.Variable) {
		return
	}
	for _, r := range readers {
		if r != w && precedes(w, r, before) {
			return
		}
	}
	for _, r := range readers {
		if r != w {
			before[w] = append(before[w], r)
		}
	}
	f.directs[a.Value] = a.Variable
}

// precedes reports whether a must run before b.
func precedes(a, b *Group, before map[*Group][]*Group) bool {
	seen := map[*Group]bool{}
	var visit func(g *Group) bool
	visit = func(g *Group) bool {
		if g == a {
			return true
		}
		if seen[g] {
			return false
		}
		seen[g] = true
		return slices.ContainsFunc(before[g], visit)
	}
	return visit(b)
}

// topological is Kahn's algorithm, the group of the lowest position first.
func topological(groups []*Group, before map[*Group][]*Group, position func(*Group) int) []*Group {
	waiting := map[*Group]int{}
	after := map[*Group][]*Group{}
	for _, g := range groups {
		slices.SortFunc(before[g], func(a, b *Group) int { return cmp.Compare(a.Nodes[0].ID, b.Nodes[0].ID) })
		before[g] = slices.Compact(before[g])
		waiting[g] = len(before[g])
		for _, p := range before[g] {
			after[p] = append(after[p], g)
		}
	}
	var ready, ordered []*Group
	for _, g := range groups {
		if waiting[g] == 0 {
			ready = append(ready, g)
		}
	}
	for len(ready) > 0 {
		i := 0
		for j, g := range ready {
			if position(g) < position(ready[i]) {
				i = j
			}
		}
		g := ready[i]
		ready = slices.Delete(ready, i, i+1)
		ordered = append(ordered, g)
		for _, c := range after[g] {
			if waiting[c]--; waiting[c] == 0 {
				ready = append(ready, c)
			}
		}
	}
	if len(ordered) != len(groups) {
		panic("fuse: the kernels depend on each other in a circle")
	}
	return ordered
}

// positions numbers groups so that values are short-lived: a group comes with its newest node. There are two
// exceptions. A group that stores only new contents of variables comes as soon as it can: it may be the last to read
// its operands, and the contents live to the end anyway. A group that loads only variables, inputs and constants, as
// the rounding of a weight does, could come first, but comes with the first group that loads its values.
func (f *fuser) positions(groups []*Group, storedBy map[*graph.Value]*Group) func(*Group) int {
	position, first := map[*Group]int{}, map[*Group]int{}
	stored := func(v *graph.Value) bool { return storedBy[v] != nil }
	for _, g := range groups {
		position[g] = g.last()
		if !slices.ContainsFunc(g.Stores, func(v *graph.Value) bool { return f.assigned[v] == nil }) {
			position[g] = -1
		} else if !slices.ContainsFunc(g.Loads, stored) {
			first[g] = math.MaxInt
		}
	}
	for _, g := range groups {
		for _, v := range g.Loads {
			if p := storedBy[v]; first[p] > 0 {
				first[p] = min(first[p], max(position[g], p.last()))
			}
		}
	}
	for g, n := range first {
		if n < math.MaxInt {
			position[g] = n
		}
	}
	return func(g *Group) int { return position[g] }
}

// last is the newest node of the group.
func (g *Group) last() int { return g.Nodes[len(g.Nodes)-1].ID }
