// Package split cuts a graph into programs that run one after the other: the forward pass, the backward pass, the gradients
// of the weights. Values that one program makes and a later one needs go through variables, the stash.
package split

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Part says what one of the programs does.
type Part struct {
	// Own are the classes whose outputs and assignments it emits; no two parts own a class.
	Own []int
	// Recompute are classes of earlier parts that it computes again, without their outputs and assignments, as far as
	// its own need them.
	Recompute []int
	// Again are nodes of earlier parts that it repeats as if they were views: what is cheaper to make than to keep; nil: none.
	Again func(*graph.Node) bool
	// Stash is the prefix of the variables that it keeps values in for later parts: they are called PREFIX0, PREFIX1, …
	Stash string
}

// Program is a part as a graph of its own, with the variables that it assigns for later parts.
type Program struct {
	Graph *graph.Graph
	Stash []graph.Named
}

// Run cuts g, whose expansions should have been carried out (graph.Expand), by the class of its nodes, into parts that run in
// the given order. A value of a class that a part neither owns nor recomputes is read from a variable, which the latest
// earlier part that computes the class assigns. Sources, generators and views are repeated wherever they are read, so that only
// values with memory of their own are kept, each in one variable. Nothing is copied, but for what g assigns to a variable of its own too.
//
// It is an error when a part needs a class that no earlier part computes, or reads a variable that an earlier part has assigned.
func Run(g *graph.Graph, class func(*graph.Node) int, parts []Part) ([]Program, error) {
	c := &cutter{g: g, class: class, owner: map[int]*part{}}
	if err := c.setUp(parts); err != nil {
		return nil, err
	}
	if err := c.mark(); err != nil {
		return nil, err
	}
	if err := c.name(); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	programs := make([]Program, len(c.parts))
	for i, p := range c.parts {
		var err error
		if programs[i].Graph, err = c.emit(p); err != nil {
			return nil, err
		}
		for _, v := range p.kept {
			programs[i].Stash = append(programs[i].Stash, graph.Named{ID: p.names[v], Type: v.Type})
		}
	}
	return programs, nil
}

type cutter struct {
	g     *graph.Graph
	class func(*graph.Node) int
	owner map[int]*part // by class
	parts []*part
}

// part is a program in the making.
type part struct {
	Part
	index     int
	computes  map[int]bool            // classes
	nodes     map[*graph.Node]bool    // that it has
	variables map[*graph.Node]bool    // that it reads
	reads     map[*graph.Value]*part  // values that it reads from the stash of an earlier part
	names     map[*graph.Value]string // of the variables that it keeps values in
	kept      []*graph.Value          // those values, in order
}

func (c *cutter) setUp(parts []Part) error {
	for i, given := range parts {
		p := &part{Part: given, index: i, computes: map[int]bool{}, nodes: map[*graph.Node]bool{},
			variables: map[*graph.Node]bool{}, reads: map[*graph.Value]*part{}, names: map[*graph.Value]string{}}
		for _, class := range given.Own {
			if c.owner[class] != nil {
				return fmt.Errorf("split: class %d is owned by parts %d and %d", class, c.owner[class].index, i)
			}
			c.owner[class] = p
			p.computes[class] = true
		}
		for _, class := range given.Recompute {
			p.computes[class] = true
		}
		c.parts = append(c.parts, p)
	}
	return nil
}

// mark finds what each part computes and what it reads from others.
func (c *cutter) mark() error {
	for _, o := range c.g.Outputs {
		if err := c.root("output "+o.Name, o.Value); err != nil {
			return err
		}
	}
	for _, a := range c.g.Assigns {
		if err := c.root(a.Variable.String(), a.Value); err != nil {
			return err
		}
		c.owner[c.class(a.Value.Node)].nodes[a.Variable.Node] = true
	}
	return nil
}

func (c *cutter) root(what string, v *graph.Value) error {
	p := c.owner[c.class(v.Node)]
	if p == nil {
		return fmt.Errorf("split: %s is of class %d, which no part owns", what, c.class(v.Node))
	}
	return c.need(p, v)
}

// need puts into p what it takes to have v there.
func (c *cutter) need(p *part, v *graph.Value) error {
	n := v.Node
	if _, ok := n.Op.(*graph.Variable); ok {
		p.variables[n] = true
	}
	switch {
	case p.reads[v] != nil || p.nodes[n] && len(n.Inputs) > 0:
		return nil
	case repeated(n) || p.Again != nil && p.Again(n) || p.computes[c.class(n)]:
		p.nodes[n] = true
		for _, in := range n.Inputs {
			if err := c.need(p, in); err != nil {
				return err
			}
		}
		return nil
	}
	for _, from := range slices.Backward(c.parts[:p.index]) {
		if from.computes[c.class(n)] {
			p.reads[v], from.names[v] = from, ""
			return c.need(from, v)
		}
	}
	return fmt.Errorf("split: part %d needs %v of class %d, which no earlier part computes", p.index, v, c.class(n))
}

// repeated tells whether a node is computed wherever it is read: it has no memory of its own to keep.
func repeated(n *graph.Node) bool {
	switch k := n.Op.Kernel(n).(type) {
	case graph.Memory:
		return true
	case graph.Elementwise:
		return k.View || len(n.Inputs) == 0
	}
	return false
}

// name numbers the stash of each part in the order of the nodes.
func (c *cutter) name() error {
	taken := map[string]bool{}
	for _, v := range c.g.Sources("variable") {
		taken[v.Node.Op.(graph.Source).Label()] = true
	}
	for _, p := range c.parts {
		for _, n := range c.g.Nodes {
			for _, v := range n.Outputs {
				if _, ok := p.names[v]; !ok {
					continue
				}
				name := fmt.Sprintf("%s%d", p.Stash, len(p.kept))
				if taken[name] {
					return fmt.Errorf("split: the stash of part %d needs the name %q, which is a variable's", p.index, name)
				}
				taken[name], p.names[v] = true, name
				p.kept = append(p.kept, v)
			}
		}
	}
	return nil
}

// check refuses what would change the meaning of the graph, in which every read sees a variable's old contents.
func (c *cutter) check() error {
	for _, a := range c.g.Assigns {
		p := c.owner[c.class(a.Value.Node)]
		for _, later := range c.parts[p.index+1:] {
			if later.variables[a.Variable.Node] {
				return fmt.Errorf("split: part %d reads %v, which part %d has assigned", later.index, a.Variable, p.index)
			}
		}
	}
	return nil
}

func (c *cutter) emit(p *part) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		values := map[*graph.Value]*graph.Value{}
		for _, n := range c.g.Nodes {
			if p.nodes[n] {
				b.Scope(n.Scope, func() { copyNode(b, n, values) })
				continue
			}
			for _, v := range n.Outputs {
				if from := p.reads[v]; from != nil {
					values[v] = b.Variable(from.names[v], v.Type)
				}
			}
		}
		for _, o := range c.g.Outputs {
			if c.owner[c.class(o.Value.Node)] == p {
				b.Output(o.Name, values[o.Value])
			}
		}
		for _, a := range c.g.Assigns {
			if c.owner[c.class(a.Value.Node)] == p {
				b.Assign(values[a.Variable], values[a.Value])
			}
		}
		for _, v := range p.kept {
			b.Assign(b.Variable(p.names[v], v.Type), values[v])
		}
	})
}

func copyNode(b *graph.Builder, n *graph.Node, values map[*graph.Value]*graph.Value) {
	in := make([]*graph.Value, len(n.Inputs))
	for i, v := range n.Inputs {
		in[i] = values[v]
	}
	for i, v := range b.Apply(n.Op, in...) {
		values[n.Outputs[i]] = v
	}
}
