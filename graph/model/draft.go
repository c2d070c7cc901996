package model

import (
	"crypto/sha256"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Draft is a model as somebody wrote it, for microbatches of one size. One value goes from each unit to the next.
type Draft struct {
	// Graph has the inputs "tokens" and perhaps "segments", u32 [B, T], and "vocabulary", the numbers from 0 to V − 1, u32 [V]; the
	// parameters as variables; and the output "logits", f32 [B, T, V]. A node's scope is the name of its unit; sources have none.
	Graph      *graph.Graph
	Units      []string    // in order
	Parameters []Parameter // in the order of their units
}

// sheets are a draft by unit.
type sheets struct {
	*Draft
	nodes  [][]*graph.Node
	leaves []*graph.Value // what each unit makes for the next, the last the logits

	digests map[*graph.Constant][sha256.Size]byte
}

func (d *Draft) sheets() *sheets {
	s := &sheets{Draft: d, nodes: make([][]*graph.Node, len(d.Units)), leaves: make([]*graph.Value, len(d.Units)),
		digests: map[*graph.Constant][sha256.Size]byte{}}
	at := map[string]int{}
	for i, u := range d.Units {
		at[u] = i
	}
	for _, n := range d.Graph.Nodes {
		to, ok := at[n.Scope]
		if !ok {
			continue
		}
		s.nodes[to] = append(s.nodes[to], n)
		for _, v := range n.Inputs {
			if from, ok := at[v.Node.Scope]; ok && from < to {
				s.leaves[from] = v
			}
		}
	}
	s.leaves[len(d.Units)-1] = d.Graph.Outputs[0].Value
	return s
}

// replay adds the nodes of a unit to another graph, x being what the unit before makes, and returns what it makes. Products have
// operands of the precision, and so have attentions, whose operands are what takes most of the memory between the passes.
func (s *sheets) replay(b *graph.Builder, u int, x *graph.Value, read source, p precision) *graph.Value {
	values := map[*graph.Value]*graph.Value{}
	if u > 0 {
		values[s.leaves[u-1]] = x
	}
	operands := map[*graph.Value]*graph.Value{}
	operand := func(v *graph.Value) *graph.Value {
		if operands[v] == nil {
			operands[v] = p.operand(v)
		}
		return operands[v]
	}
	b.Scope(s.Units[u], func() {
		for _, n := range s.nodes[u] {
			in := make([]*graph.Value, len(n.Inputs))
			for i, v := range n.Inputs {
				if in[i] = values[v]; in[i] == nil {
					in[i] = again(b, v, read)
				}
				switch n.Op.(type) {
				case *op.MatMulOp, *op.AttentionOp:
					if in[i].DType == graph.F32 { // attention's position and segments are not
						in[i] = operand(in[i])
					}
				}
			}
			for i, v := range b.Apply(n.Op, in...) {
				values[n.Outputs[i]] = v
			}
		}
	})
	return values[s.leaves[u]]
}

// again is a source of a draft in another graph. It is an op of its own: those who get the graph may rename it.
func again(b *graph.Builder, v *graph.Value, read source) *graph.Value {
	switch o := v.Node.Op.(type) {
	case *graph.Variable:
		return b.Variable(o.ID, o.Type)
	case *graph.Constant:
		return b.Constant(o.ID, o.Type, o.Data)
	case *graph.Input:
		return read(o.ID, o.Type)
	}
	panic(fmt.Sprintf("model: %v is of another unit", v))
}

// Learns refuses a draft with a parameter that no gradient of the logits reaches.
func (d *Draft) Learns() error {
	s := d.sheets()
	_, err := graph.Build(func(b *graph.Builder) {
		var x *graph.Value
		for u := range d.Units {
			x = s.replay(b, u, x, b.Input, precision(graph.F32))
		}
		var wrt []*graph.Value
		for _, p := range d.Parameters {
			wrt = append(wrt, b.Variable(p.Name, p.Type))
		}
		for i, g := range autodiff.Gradients(x, nil, wrt...) {
			if g == nil {
				b.Fail(fmt.Sprintf("parameter %q", d.Parameters[i].Name), "the logits do not depend on it in a way that has a gradient")
			}
		}
	})
	return err
}

// dmodel is the width of what goes from unit to unit.
func (s *sheets) dmodel() int {
	if len(s.Units) == 1 {
		return 0
	}
	return s.leaves[0].Shape[2]
}
