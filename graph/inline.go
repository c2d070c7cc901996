package graph

// Inline adds the nodes of g, in order and in b's scope, with values in place of its inputs, and returns its outputs by
// name. Constants keep their names; g has no variables and assigns nothing. An input without a value, or with one of
// another type, stops the build with an *Error.
func (b *Builder) Inline(g *Graph, inputs map[string]*Value) map[string]*Value {
	if len(g.Assigns) > 0 || len(g.Sources("variable")) > 0 {
		panic("graph: a graph with variables is not to be inlined")
	}
	values := map[*Value]*Value{}
	for _, n := range g.Nodes {
		for i, v := range b.inlined(n, inputs, values) {
			values[n.Outputs[i]] = v
		}
	}
	out := map[string]*Value{}
	for _, o := range g.Outputs {
		out[o.Name] = values[o.Value]
	}
	return out
}

func (b *Builder) inlined(n *Node, inputs map[string]*Value, values map[*Value]*Value) []*Value {
	switch o := n.Op.(type) {
	case *Input:
		v := inputs[o.ID]
		if v == nil || !v.Type.Equal(o.Type) {
			b.Fail("inline", "input %q is %v, given is %v", o.ID, o.Type, v)
		}
		return []*Value{v}
	case Source:
		return []*Value{b.source(o)}
	}
	in := make([]*Value, len(n.Inputs))
	for i, v := range n.Inputs {
		in[i] = values[v]
	}
	return b.Apply(n.Op, in...)
}
