package fuse

import (
	"github.com/gpupipe/gpupipe/graph"
)

// fit makes every group one that the device can bind on its own: single elements, which are computed wherever they are
// read, are stored instead where a kernel would read too many arrays for their sake.
func (f *fuser) fit() {
	for _, n := range f.g.Nodes {
		if g := f.group[n]; g != nil {
			f.fitGroup(g)
		}
	}
}

func (f *fuser) fitGroup(g *Group) {
	for f.trace(g) && f.bindings(g) > f.opt.MaxBindings {
		var widest *graph.Node
		most := 1
		for _, n := range f.inlinedInto(g.Nodes[0]) {
			e := f.kernels[n].(graph.Elementwise)
			if loads := f.cone(n); !e.View && loads > most {
				widest, most = n, loads
			}
		}
		if widest == nil {
			return
		}
		f.stored[widest.Outputs[0]] = true
		f.group[widest] = f.single(widest)
		f.fitGroup(f.group[widest])
	}
}

// inlinedInto lists the nodes that are computed within n's kernel although they have no place in its group.
func (f *fuser) inlinedInto(n *graph.Node) []*graph.Node {
	var found []*graph.Node
	seen := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		for _, in := range n.Inputs {
			if f.isInlined(in.Node) && !seen[in.Node] {
				seen[in.Node] = true
				found = append(found, in.Node)
				visit(in.Node)
			}
		}
	}
	visit(n)
	return found
}

// cone counts the stored values that computing n reads.
func (f *fuser) cone(n *graph.Node) int {
	read := map[*graph.Value]bool{}
	for _, m := range append(f.inlinedInto(n), n) {
		for _, in := range m.Inputs {
			if !f.isInlined(in.Node) {
				read[in] = true
			}
		}
	}
	return len(read)
}
