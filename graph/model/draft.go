package model

import (
	"crypto/sha256"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Draft is a model as a graph, for microbatches of B sequences. Each unit passes one value to the next.
type Draft struct {
	// Graph has the input "tokens" u32 [B, T], optionally "segments" u32 [B, T] and "vocabulary" u32 [V], the ids from
	// 0 to V − 1. The parameters are variables. The output is "logits" f32 [B, T, V]. A node's scope is the name of its
	// unit; sources have none.
	Graph      *graph.Graph
	Units      []string    // in order
	Parameters []Parameter // in the order of their units
}

// draft is a Draft with its nodes by unit.
type draft struct {
	*Draft
	nodes   [][]*graph.Node
	results []*graph.Value // that each unit passes to the next; of the last unit the logits

	digests map[*graph.Constant][sha256.Size]byte
}

func (d *Draft) byUnit() *draft {
	s := &draft{Draft: d, nodes: make([][]*graph.Node, len(d.Units)), results: make([]*graph.Value, len(d.Units)),
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
				s.results[from] = v
			}
		}
	}
	s.results[len(d.Units)-1] = d.Graph.Outputs[0].Value
	return s
}

// replay adds the nodes of a unit to another graph and returns the unit's result; x is the result of the unit before.
// Products and attention get operands of the precision: attention's operands take most of the memory between the
// passes.
func (s *draft) replay(b *graph.Builder, u int, x *graph.Value, read source, p precision) *graph.Value {
	values := map[*graph.Value]*graph.Value{}
	if u > 0 {
		values[s.results[u-1]] = x
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
					in[i] = copySource(b, v, read)
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
	return values[s.results[u]]
}

// copySource adds a source of a draft to another graph. It is a new op, since the receiver of the graph may rename it.
func copySource(b *graph.Builder, v *graph.Value, read source) *graph.Value {
	switch o := v.Node.Op.(type) {
	case *graph.Variable:
		return b.Variable(o.ID, o.Type)
	case *graph.Constant:
		return b.Constant(o.ID, o.Type, o.Data)
	case *graph.Input:
		return read(o.ID, o.Type)
	}
	panic(fmt.Sprintf("model: %v belongs to another unit", v))
}

// Learns returns an error if no gradient of the logits reaches some parameter.
func (d *Draft) Learns() error {
	s := d.byUnit()
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
				b.Fail(fmt.Sprintf("parameter %q", d.Parameters[i].Name), "no gradient flows from the logits to it")
			}
		}
	})
	return err
}

// dmodel is the width of the values between units; 0: there is one unit.
func (s *draft) dmodel() int {
	if len(s.Units) == 1 {
		return 0
	}
	return s.results[0].Shape[2]
}
