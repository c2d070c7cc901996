package fuse

import (
	"cmp"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// fewRows is the number of rows under which a kernel whose unit is the row does not fill a device, and longRow the row
// length up to which that does not matter.
const fewRows, longRow = 64, 4096

// mostNodes bounds the nodes of a kernel, since the time to fuse a chain and to compile its kernel grows faster than
// its length.
const mostNodes = 256

// mergeAll merges groups along the edges of the graph until no two can be merged.
func (f *fuser) mergeAll() {
	for again := true; again; {
		again = false
		for _, n := range f.g.Nodes {
			c := f.group[n]
			if c == nil {
				continue
			}
			for _, p := range f.producers(c) {
				if m := f.merged(p, c); m != nil {
					for node := range m.members {
						f.group[node] = m
					}
					c, again = m, true
				}
			}
		}
	}
}

// producers are the groups that c reads from, in order of their first node.
func (f *fuser) producers(c *Group) []*Group {
	found := map[*Group]bool{}
	seen := map[*graph.Node]bool{} // nodes computed where they are read; several paths may lead to one
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		for _, in := range n.Inputs {
			if p := f.group[in.Node]; p != nil {
				if p != c {
					found[p] = true
				}
			} else if !seen[in.Node] {
				seen[in.Node] = true
				visit(in.Node)
			}
		}
	}
	for _, n := range c.Nodes {
		visit(n)
	}
	ps := make([]*Group, 0, len(found))
	for p := range found {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b *Group) int { return cmp.Compare(a.Nodes[0].ID, b.Nodes[0].ID) })
	return ps
}

// merged returns the group of the nodes of both, nil if they cannot be one kernel.
func (f *fuser) merged(p, c *Group) *Group {
	if p.Scope != c.Scope || len(p.Nodes)+len(c.Nodes) > mostNodes {
		return nil
	}
	m := combine(p, c)
	if m == nil || f.apart[[2]*Group{p, c}] || p.Kind == MatMul && f.onlyReduced(c) || f.indirect(p, c) {
		return nil
	}
	m.Scope = p.Scope
	m.Nodes = slices.Concat(p.Nodes, c.Nodes)
	slices.SortFunc(m.Nodes, func(a, b *graph.Node) int { return cmp.Compare(a.ID, b.ID) })
	m.members = map[*graph.Node]bool{}
	for _, n := range m.Nodes {
		m.members[n] = true
	}
	if !f.trace(m) || f.bindings(m) > f.opt.MaxBindings {
		f.apart[[2]*Group{p, c}] = true
		return nil
	}
	return m
}

// combine gives the kind and domain of two groups together.
func combine(p, c *Group) *Group {
	full, row := c.Rows == p.Rows*p.Cols, c.Rows == p.Rows
	switch {
	case (p.Kind == Map || p.Kind == MatMul) && c.Kind == Map && row:
		return &Group{Kind: p.Kind, Domain: p.Domain}
	case p.Kind == Map && c.Kind == MatMul && row: // inputs of the epilogue besides the product
		return &Group{Kind: MatMul, Domain: c.Domain}
	case p.Kind == Map && c.Kind == Reduce && (p.Rows == c.Rows*c.Cols || row):
		return &Group{Kind: Reduce, Domain: c.Domain}
	case p.Kind == Reduce && c.Kind == Map && (full && p.trailing() || row):
		return &Group{Kind: Reduce, Domain: p.Domain}
	case p.Kind == Reduce && c.Kind == Reduce && row && p.Cols == c.Cols &&
		(p.trailing() && c.trailing() || p.Shape.Equal(c.Shape) && slices.Equal(p.Axes, c.Axes)):
		return &Group{Kind: Reduce, Domain: p.Domain}
	}
	return nil
}

// onlyReduced reports whether only reductions read c. If c is merged with them instead, it need not be stored.
func (f *fuser) onlyReduced(c *Group) bool {
	reduced := false
	seen := map[*graph.Value]bool{}
	var check func(v *graph.Value) bool
	check = func(v *graph.Value) bool {
		if seen[v] {
			return true
		}
		if seen[v] = true; f.stored[v] {
			return false
		}
		for _, u := range f.users[v] {
			switch g := f.group[u]; {
			case c.members[u]:
			case g == nil:
				if !check(u.Outputs[0]) {
					return false
				}
			case g.Kind != Reduce:
				return false
			default:
				reduced = true
			}
		}
		return true
	}
	for _, n := range c.Nodes {
		if !check(n.Outputs[0]) {
			return false
		}
	}
	return reduced
}

// indirect reports whether c also depends on p through a third group, so that merging would close a cycle.
func (f *fuser) indirect(p, c *Group) bool {
	seen := map[*Group]bool{p: true}
	var reaches func(g *Group) bool
	reaches = func(g *Group) bool {
		if seen[g] || g.last() < p.Nodes[0].ID {
			return g == p
		}
		seen[g] = true
		return slices.ContainsFunc(f.producers(g), reaches)
	}
	return slices.ContainsFunc(f.producers(c), func(g *Group) bool { return g != p && reaches(g) })
}

// external reports whether anything outside the group reads v.
func (f *fuser) external(v *graph.Value, g *Group) bool {
	return f.readOutside(v, g, map[*graph.Node]bool{})
}

// readOutside is external without the nodes already seen.
func (f *fuser) readOutside(v *graph.Value, g *Group, seen map[*graph.Node]bool) bool {
	if f.stored[v] {
		return true
	}
	for _, u := range f.users[v] {
		if g.members[u] || seen[u] {
			continue
		}
		seen[u] = true
		if f.group[u] != nil {
			return true
		}
		for _, o := range u.Outputs { // computed where it is read
			if _, aliased := f.alias[o]; aliased || f.readOutside(o, g, seen) {
				return true
			}
		}
	}
	return false
}

// bindings counts the storage arrays of a group; a value that replaces the variable it was read from needs only one,
// which is sure when nothing else reads that variable.
func (f *fuser) bindings(g *Group) int {
	n := g.arrays + len(g.Stores)
	for _, s := range g.Stores {
		if v, ok := f.assigned[s]; ok && slices.Contains(g.InPlace[s], v) && !f.external(v, g) {
			n--
		}
	}
	return n
}

// Phases orders the reductions of a group: a reduction needs only the results of earlier phases.
func (g *Group) Phases() [][]*graph.Node {
	depth := map[*graph.Node]int{}
	var phases [][]*graph.Node
	var visit func(n *graph.Node) int
	visit = func(n *graph.Node) int {
		if d, ok := depth[n]; ok {
			return d
		}
		d := 0
		for _, in := range n.Inputs {
			if in.Node.ID >= g.Nodes[0].ID { // older nodes cannot depend on the group
				d = max(d, visit(in.Node))
			}
		}
		if _, ok := n.Op.Kernel(n).(graph.Reduction); ok && g.members[n] {
			if d == len(phases) {
				phases = append(phases, nil)
			}
			phases[d] = append(phases[d], n)
			d++
		}
		depth[n] = d
		return d
	}
	for _, n := range g.Nodes {
		visit(n)
	}
	return phases
}

// isInlined reports whether a node is computed wherever it is read, once the groups are final.
func (f *fuser) isInlined(n *graph.Node) bool {
	_, ok := f.kernels[n].(graph.Elementwise)
	return ok && f.group[n] == nil
}
