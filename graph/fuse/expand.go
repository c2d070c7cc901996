package fuse

import "github.com/gpupipe/gpupipe/graph"

// expand rebuilds the graph with every Expansion carried out and without the nodes that nothing needs.
func expand(g *graph.Graph) (*graph.Graph, error) {
	for {
		again := false
		out, err := graph.Build(func(b *graph.Builder) {
			live := alive(g)
			values := map[*graph.Value]*graph.Value{}
			for _, n := range g.Nodes {
				if !live[n] {
					continue
				}
				in := make([]*graph.Value, len(n.Inputs))
				for i, v := range n.Inputs {
					in[i] = values[v]
				}
				var outs []*graph.Value
				b.Scope(n.Scope, func() {
					if e, ok := n.Op.Kernel(n).(graph.Expansion); ok {
						outs, again = e.Expand(in), true
					} else {
						outs = b.Apply(n.Op, in...)
					}
				})
				for i, v := range n.Outputs {
					if !outs[i].Type.Equal(v.Type) {
						panic("fuse: the expansion of " + n.Op.Name() + " gives " + outs[i].Type.String() + ", its shape rule " + v.Type.String())
					}
					values[v] = outs[i]
				}
			}
			for _, o := range g.Outputs {
				b.Output(o.Name, values[o.Value])
			}
			for _, a := range g.Assigns {
				b.Assign(values[a.Variable], values[a.Value])
			}
		})
		if err != nil || !again {
			return out, err
		}
		g = out
	}
}

// alive marks the nodes that outputs and assignments depend on.
func alive(g *graph.Graph) map[*graph.Node]bool {
	live := map[*graph.Node]bool{}
	for _, o := range g.Outputs {
		live[o.Value.Node] = true
	}
	for _, a := range g.Assigns {
		live[a.Value.Node], live[a.Variable.Node] = true, true
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		if n := g.Nodes[i]; live[n] {
			for _, in := range n.Inputs {
				live[in.Node] = true
			}
		}
	}
	return live
}
