package model

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
)

// Draft is a model as somebody wrote it, for microbatches of one size. One value goes from each unit to the next.
type Draft struct {
	// Graph has the inputs "tokens" and perhaps "segments", u32 [B, T], the parameters as variables, and the output "logits",
	// f32 [B, T, V]. A node's scope is the name of its unit; sources have none.
	Graph      *graph.Graph
	Units      []string    // in order
	Parameters []Parameter // in the order of their units
}

// leaving lists what each unit makes for the next, the last the logits.
func (d *Draft) leaving() []*graph.Value {
	out := make([]*graph.Value, len(d.Units))
	for _, n := range d.Graph.Nodes {
		to := slices.Index(d.Units, n.Scope)
		for _, v := range n.Inputs {
			if from := slices.Index(d.Units, v.Node.Scope); from >= 0 && from < to {
				out[from] = v
			}
		}
	}
	out[len(out)-1] = d.Graph.Outputs[0].Value
	return out
}

// replay adds the nodes of units [first, last) to another graph, entry being what the unit before makes. It returns what each of
// them makes.
func (d *Draft) replay(b *graph.Builder, first, last int, source func(string, graph.Type) *graph.Value, entry *graph.Value) []*graph.Value {
	leaving, values := d.leaving(), map[*graph.Value]*graph.Value{}
	if first > 0 {
		values[leaving[first-1]] = entry
	}
	for _, n := range d.Graph.Nodes {
		if u := slices.Index(d.Units, n.Scope); u < first || u >= last {
			continue
		}
		in := make([]*graph.Value, len(n.Inputs))
		for i, v := range n.Inputs {
			if in[i] = values[v]; in[i] == nil {
				in[i] = sourceIn(b, v, source)
			}
		}
		b.Scope(n.Scope, func() {
			for i, v := range b.Apply(n.Op, in...) {
				values[n.Outputs[i]] = v
			}
		})
	}
	out := make([]*graph.Value, 0, last-first)
	for _, v := range leaving[first:last] {
		out = append(out, values[v])
	}
	return out
}

// sourceIn is a source of a draft in another graph. It is not the same op: those who take the graph may rename it.
func sourceIn(b *graph.Builder, v *graph.Value, input func(string, graph.Type) *graph.Value) *graph.Value {
	switch o := v.Node.Op.(type) {
	case *graph.Variable:
		return b.Variable(o.ID, o.Type)
	case *graph.Constant:
		return b.Constant(o.ID, o.Type, o.Data)
	case *graph.Input:
		return input(o.ID, o.Type)
	}
	panic(fmt.Sprintf("model: %v is of an earlier unit", v))
}

// Learns refuses a draft with a parameter that no gradient of the logits reaches.
func (d *Draft) Learns() error {
	_, err := graph.Build(func(b *graph.Builder) {
		logits := d.replay(b, 0, len(d.Units), b.Input, nil)
		var wrt []*graph.Value
		for _, p := range d.Parameters {
			wrt = append(wrt, b.Variable(p.Name, p.Type))
		}
		for i, g := range autodiff.Gradients(logits[len(logits)-1], nil, wrt...) {
			if g == nil {
				b.Fail(fmt.Sprintf("parameter %q", d.Parameters[i].Name), "the logits do not depend on it in a way that has a gradient")
			}
		}
	})
	return err
}
