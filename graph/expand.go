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
					if expand := g.expansion(n, live); expand != nil {
						outs, again = expand(in), true
					} else {
						outs = b.Apply(n.Op, in...)
					}
				})
				for i, v := range n.Outputs {
					if !outs[i].Type.Equal(v.Type) {
						panic("graph: the expansion of " + n.Op.Name() + " gives " + outs[i].Type.String() + ", its shape rule " +
							v.Type.String())
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

// expansion returns the function that rewrites n, nil if n stays.
func (g *Graph) expansion(n *Node, live map[*Node]bool) func(in []*Value) []*Value {
	switch k := n.Op.Kernel(n).(type) {
	case Expansion:
		return k.Expand
	case Template:
		if k.Update != nil && !g.replaces(n, live) {
			return k.Update.Expand
		}
	}
	return nil
}

// replaces reports whether result 0 of n replaces the variable that is its input 0, and only that one, and nothing else
// reads the variable.
func (g *Graph) replaces(n *Node, live map[*Node]bool) bool {
	old, assigned := n.Inputs[0], 0
	for _, a := range g.Assigns {
		switch {
		case a.Value == old, a.Value == n.Outputs[0] && a.Variable != old:
			return false
		case a.Value == n.Outputs[0]:
			assigned++
		}
	}
	for _, o := range g.Outputs {
		if o.Value == old {
			return false
		}
	}
	reads := 0
	for _, m := range g.Nodes {
		for _, in := range m.Inputs {
			if in == old && live[m] {
				reads++
			}
		}
	}
	return assigned == 1 && reads == 1
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
