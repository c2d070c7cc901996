package model

import (
	"errors"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
)

// The variables by which a chunk of the model exchanges values with the chunks before and after it: f32 [B, T,
// d_model].
const (
	ActIn   = "act/in"   // input of the chunk's first unit
	ActOut  = "act/out"  // result of its last unit
	GradIn  = "grad/in"  // gradient of ActIn
	GradOut = "grad/out" // gradient of ActOut
)

// WeightsSuffix ends the scopes of the nodes of the backward pass that no gradient of an activation needs.
const WeightsSuffix = " weights"

// span builds units [first, last) for microbatches of batch sequences. A tied model is built as if the head had its own
// matrix, so that the head's share of the gradient is a gradient of its own. Then tie replaces that matrix by the
// embedding.
type span struct {
	Size
	model              Model
	b                  *graph.Builder
	net                network
	first, last, batch int
	inputs             Inputs
	scale              graph.Named
	source             source
}

// source declares a tensor of the microbatch's data: a variable or an input.
type source func(name string, t graph.Type) *graph.Value

func newSpan(m Model, first, last, batch int) *span {
	return &span{Size: m.Size(), model: m, first: first, last: last, batch: batch}
}

// build returns the graph that f builds, with expansions carried out.
func (s *span) build(f func(s *span)) (*graph.Graph, error) {
	if err := s.model.Validate(); err != nil {
		return nil, err
	}
	var failed error
	g, err := graph.Build(func(b *graph.Builder) {
		s.b, s.source = b, b.Variable
		if s.net, failed = s.model.network(b, s.batch); failed == nil {
			f(s)
		}
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, err
	}
	if s.model.Tied() {
		tie(g)
	}
	return graph.Expand(g)
}

// tie makes every reader of the head's parameter read the embedding.
func tie(g *graph.Graph) {
	var embed, head *graph.Value
	for _, v := range g.Sources("variable") {
		switch v.Node.Op.(graph.Source).Label() {
		case embedName:
			embed = v
		case headName:
			head = v
		}
	}
	for _, n := range g.Nodes {
		for i, in := range n.Inputs {
			if in == head {
				n.Inputs[i] = embed
			}
		}
	}
}

// isFirst and isLast report whether the span has the first and the last unit.
func (s *span) isFirst() bool { return s.first == 0 }
func (s *span) isLast() bool  { return s.last == s.model.Units() }

// headScope is the scope of the last unit.
func (s *span) headScope() string { return s.model.UnitScope(s.model.Units() - 1) }

func (s *span) ids() graph.Type { return s.perToken(s.batch, graph.T(graph.U32)) }
func (s *span) act() graph.Type { return graph.T(graph.F32, s.batch, s.SeqLen, s.DModel) }

// forward returns the span's result, activations or losses, and its entry: the input of the span or, if it has the
// first unit, of the second unit.
func (s *span) forward(loss Loss) (entry, y *graph.Value) {
	if !s.isFirst() {
		entry = s.source(ActIn, s.act())
	}
	y = entry
	for u := s.first; u < s.last; u++ {
		y = s.net.unit(u, y, s.read)
		if entry == nil {
			entry = y
		}
	}
	if s.isLast() {
		y = s.losses(y, s.source(TargetsInput, s.ids()), loss)
	}
	return entry, y
}

// read returns the tokens, the segments or the marks of padding of a microbatch; nil: there are none.
func (s *span) read(name string) *graph.Value {
	if name == SegmentsInput && !s.inputs.Segments || name == RealInput && !s.inputs.Real {
		return nil
	}
	return s.source(name, s.ids())
}

// eval adds the forward pass: activations for the next chunk, or the mean loss of each sequence.
func (s *span) eval() {
	_, y := s.forward(evaluationLoss)
	if !s.isLast() {
		s.b.Assign(s.b.Variable(ActOut, s.act()), y)
		return
	}
	s.b.Scope(s.headScope(), func() {
		s.b.Output(LossesOutput, op.Mean(op.Reshape(y, s.batch, s.SeqLen), []int{1}, false))
	})
}

// grad adds the forward and the backward pass of one microbatch. The backward pass stores the gradients or adds to
// them.
func (s *span) grad(microbatches int, accumulate bool, loss Loss) {
	store := func(scope, name string, x *graph.Value) {
		v := s.b.Variable(name, x.Type)
		if accumulate {
			s.b.Scope(scope+WeightsSuffix, func() { x = op.Add(v, x) })
		}
		s.b.Assign(v, x)
	}
	entry, y := s.forward(loss)
	var seed *graph.Value
	if s.isLast() {
		s.b.Scope(LossScope, func() {
			y = op.Mean(y, nil, false)
			s.b.Output(LossOutput, op.Reshape(y, 1))
			seed = op.Scalar(s.b, graph.F32, 1/float64(microbatches))
		})
		var share *graph.Value
		s.b.Scope(LossScope+WeightsSuffix, func() { share = op.Mul(op.Reshape(y, 1), seed) })
		store(LossScope, LossVariable, share)
		seed = s.scaled(seed)
	} else {
		s.b.Assign(s.b.Variable(ActOut, s.act()), y)
		seed = s.source(GradOut, s.act())
	}
	ps := within(s.net.parameters(), s.model, s.first, s.last)
	var wrt []*graph.Value
	for _, p := range ps {
		wrt = append(wrt, s.net.parameter(p.Name))
	}
	losses, loads := []autodiff.Seeded{{Loss: y, Seed: seed}}, map[string]*graph.Value{}
	for _, r := range s.net.routing() {
		loads[balancingBias(r.layer)] = r.load
		for _, l := range r.losses {
			losses = append(losses, autodiff.Seeded{Loss: l, Seed: s.sideSeed(r, microbatches)})
		}
	}
	s.reportRouting()
	grads := autodiff.GradientsOfSum(losses, append(wrt, entry)...)
	onEntry := grads[len(ps)]
	if onEntry == nil {
		s.b.Fail("loss", "no gradient flows from it to the logits or to hidden")
	}
	s.separate(onEntry)
	if !s.isFirst() {
		s.b.Assign(s.b.Variable(GradIn, s.act()), onEntry)
	}
	for i, p := range ps {
		scope := s.model.UnitScope(UnitOf(s.model, p))
		if p.Role == BalancingBias {
			s.b.Scope(scope+WeightsSuffix, func() { grads[i] = op.Cast(loads[p.Name], graph.F32) }) // exact up to 2²⁴ rows
		}
		if grads[i] == nil { // the loss does not read the logits, nor the head
			s.b.Scope(scope+WeightsSuffix, func() { grads[i] = op.Full(s.b, graph.F32, 0, p.Type.Shape...) })
		}
		store(scope, Gradient(p.Name), grads[i])
	}
}

// sideSeed is the gradient that flows into a side loss of a microbatch.
func (s *span) sideSeed(r routing, microbatches int) (seed *graph.Value) {
	s.b.Scope(LayerScope(r.layer)+autodiff.Suffix, func() {
		if seed = op.Scalar(s.b, graph.F32, 1/float64(microbatches)); s.scale.ID != "" {
			seed = op.Mul(op.Reshape(op.Slice(s.b.Variable(s.scale.ID, s.scale.Type), 0, 0, 1)), seed)
		}
	})
	return seed
}

// reportRouting makes the loads and the statistics of the routers an output.
func (s *span) reportRouting() {
	var rows []*graph.Value
	s.b.Scope(RoutingOutput, func() {
		for _, r := range s.net.routing() {
			row := op.Concat(0, op.Cast(r.load, graph.F32), r.stats)
			rows = append(rows, op.Reshape(row, 1, row.Shape[0]))
		}
		if len(rows) > 0 {
			s.b.Output(RoutingOutput, op.Concat(0, rows...))
		}
	})
}

// scaled multiplies the gradient that flows into the loss by the loss scale. The backward pass reads the scale, so it
// is not stashed.
func (s *span) scaled(seed *graph.Value) *graph.Value {
	if s.scale.ID == "" {
		return seed
	}
	s.b.Scope(LossScope+autodiff.Suffix, func() {
		scale := op.Slice(s.b.Variable(s.scale.ID, s.scale.Type), 0, 0, 1)
		seed = op.Mul(op.Reshape(scale), seed)
	})
	return seed
}

// separate moves the nodes of the backward pass that onEntry, the gradient of the entry, does not depend on to a scope
// of their own. The gradient of every activation inside the model is an ancestor of onEntry, and the first unit needs
// none, so the scopes are the same wherever the model is cut.
func (s *span) separate(onEntry *graph.Value) {
	needed := map[*graph.Node]bool{onEntry.Node: true}
	for i := s.b.Len() - 1; i >= 0; i-- {
		n := s.b.Node(i)
		if needed[n] {
			for _, in := range n.Inputs {
				needed[in.Node] = true
			}
		} else if layer, ok := strings.CutSuffix(n.Scope, autodiff.Suffix); ok {
			n.Scope = layer + WeightsSuffix
		}
	}
}
