package graph

// Expand rebuilds the graph with every Expansion carried out, in the scope of its node, and without the nodes that
// nothing needs.
func Expand(g *Graph) (*Graph, error) {
	for {
		again := false
		out, err := Build(func(b *Builder) {
			live := alive(g)
			values := map[*Value]*Value{}
			for _, n := range g.Nodes {
				if !live[n] {
					continue
				}
				in := make([]*Value, len(n.Inputs))
				for i, v := range n.Inputs {
					in[i] = values[v]
				}
				var outs []*Value
				b.Scope(n.Scope, func() {
					if e, ok := n.Op.Kernel(n).(Expansion); ok {
						outs, again = e.Expand(in), true
					} else {
						outs = b.Apply(n.Op, in...)
					}
				})
				for i, v := range n.Outputs {
					if !outs[i].Type.Equal(v.Type) {
						panic("graph: the expansion of " + n.Op.Name() + " gives " + outs[i].Type.String() + ", its shape rule " + v.Type.String())
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
func alive(g *Graph) map[*Node]bool {
	live := map[*Node]bool{}
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
