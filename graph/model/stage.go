package model

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/split"
)

// StageOptions choose a chunk of a model and how it is trained.
type StageOptions struct {
	First, Last  int // units [First, Last)
	Batch        int // sequences a microbatch
	Microbatches int // of the whole batch: the loss and its gradient are divided by it
	// Recompute makes the backward pass compute the forward pass again instead of reading a stash; the chunk with the
	// last unit still keeps the loss. A Forward that stores less has other kernels for the same mathematics, whose bits
	// may differ on some devices.
	Recompute bool
	Loss      Loss // the training loss, for the chunk with the last unit; nil is CrossEntropy. Stage.Eval always uses CrossEntropy
	Inputs    Inputs
	// Scale is a variable f32 [n]. The backward passes of the chunk with the last unit and of chunks with side losses
	// read it: they compute the gradients of the losses times its first element. Without a name they compute the
	// gradients of the losses.
	Scale graph.Named
}

// Stage is the training programs of a chunk. They have no inputs: they read and assign variables only.
//
//	tokens             u32 [B, T]           read by the first chunk
//	targets            u32 [B, T]           read by the last chunk
//	segments           u32 [B, T]           read by chunks with attention, if Inputs has them; by Eval with EvalSegments
//	weights            f32 [B, T]           read by the last chunk, if Inputs has them
//	real               u32 [B, T]           read by chunks with mixtures of experts, if Inputs has it
//	aligned/NAME       [B, T, …]            read by the last chunk, if its loss does
//	scalars            f32 [n]              read by the last chunk, if its loss does
//	Scale              f32 [n]              read by the last chunk and by chunks with side losses, if StageOptions has it
//	act/in, grad/out   f32 [B, T, d_model]  read: the chunks before and after send them
//	act/out, grad/in   f32 [B, T, d_model]  assigned: they are sent to the chunks after and before
//	NAME               a parameter, read; the head of a tied model reads the embedding
//	grad/NAME          the batch's gradient so far, assigned; Model.Gradients names the variables to sum
//	loss               f32 [1], the batch's mean loss so far, assigned by the last chunk's backward pass
//	stash/N, wstash/N  see Stash
//
// The first microbatch of a batch runs Backward, which stores the gradients and the loss. The other microbatches run
// BackwardNext, which adds to them. All run Forward. The last chunk's Forward also has the output "loss", the
// microbatch's mean. Forward of a chunk with mixtures of experts has the output "routing", see RoutingOutput.
type Stage struct {
	Forward, Backward, BackwardNext *graph.Graph
	// The backward pass as two programs: InputGrad assigns grad/in, then WeightGrad or WeightGradNext does the rest.
	// The first chunk sends no gradient: its InputGrad is nil, and its WeightGrad is Backward.
	InputGrad, WeightGrad, WeightGradNext *graph.Graph
	// Eval is the forward pass without training; the last chunk's outputs "losses" f32 [B], the mean of each sequence.
	Eval *graph.Graph
	// Stash lists the variables in which Forward keeps values for the backward pass. WeightStash lists the variables in
	// which InputGrad keeps values for WeightGrad. Each microbatch in flight needs its own, as it needs its own act/in,
	// tokens, targets and other inputs.
	Stash, WeightStash []graph.Named
	// Parameters are the parameters that the programs read, in the model's order.
	Parameters []Parameter
}

// The classes of nodes: the forward pass, what the backward pass never recomputes (the microbatch's mean loss, and
// which experts were chosen, since rounding could change the choice), gradients of activations, gradients of weights.
const (
	forwardClass = iota
	stashedClass
	inputClass
	weightClass
)

func passOf(n *graph.Node) int {
	switch {
	case strings.HasSuffix(n.Scope, autodiff.Suffix):
		return inputClass
	case strings.HasSuffix(n.Scope, WeightsSuffix):
		return weightClass
	case n.Scope == LossScope:
		return stashedClass
	}
	switch n.Op.(type) {
	case *op.TopKOp, *op.GroupRowsOp:
		return stashedClass
	}
	return forwardClass
}

func newStage(m Model, o StageOptions) (*Stage, error) {
	switch {
	case o.First < 0 || o.First >= o.Last || o.Last > m.Units():
		return nil, fmt.Errorf("units: found [%d, %d), expected a range within [0, %d)", o.First, o.Last, m.Units())
	case o.Batch < 1 || o.Microbatches < 1:
		return nil, fmt.Errorf("found %d microbatches of %d sequences, expected at least 1 of 1", o.Microbatches, o.Batch)
	}
	if err := o.Inputs.check(); err != nil {
		return nil, err
	}
	s := &Stage{Parameters: m.Reads(o.First, o.Last)}
	var err error
	eval := newSpan(m, o.First, o.Last, o.Batch)
	eval.inputs.Segments = o.Inputs.EvaluationReads(SegmentsInput)
	if s.Eval, err = eval.build((*span).eval); err != nil {
		return nil, err
	}
	next := &Stage{}
	if err := s.passes(m, o, false); err != nil {
		return nil, err
	}
	if err := next.passes(m, o, true); err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(s.Stash, next.Stash) || !reflect.DeepEqual(s.WeightStash, next.WeightStash) {
		panic("model: the first microbatch and the next keep different values")
	}
	s.BackwardNext, s.WeightGradNext = next.Backward, next.WeightGrad
	return s, nil
}

// training is the forward and the backward pass in one graph. from makes the source of the microbatch's data.
func training(m Model, o StageOptions, from func(*graph.Builder) source, accumulate bool) (*graph.Graph, error) {
	if o.Loss == nil {
		o.Loss = CrossEntropy
	}
	s := newSpan(m, o.First, o.Last, o.Batch)
	s.inputs, s.scale = o.Inputs, o.Scale
	g, err := s.build(func(s *span) {
		s.source = from(s.b)
		s.grad(o.Microbatches, accumulate, o.Loss)
	})
	if err != nil {
		return nil, err
	}
	rounded := func(*graph.Node) bool { return false }
	if o.Recompute { // otherwise package split repeats them
		rounded = operandOf(m)
	}
	return repeatActivations(g, rounded)
}

// passes cuts the training graph into the forward pass and the backward pass, and the backward pass into the gradients
// of activations and of weights.
func (s *Stage) passes(m Model, o StageOptions, accumulate bool) error {
	g, err := training(m, o, func(b *graph.Builder) source { return b.Variable }, accumulate)
	if err != nil {
		return err
	}
	forward := split.Phase{Own: []int{forwardClass, stashedClass}, Stash: "stash/"}
	var again []int
	if o.Recompute {
		again = []int{forwardClass}
	}
	two, err := split.Run(g, passOf, []split.Phase{forward, {Own: []int{inputClass, weightClass}, Recompute: again, Again: operandOf(m)}})
	if err != nil {
		return err
	}
	s.Forward, s.Stash, s.Backward = two[0].Graph, two[0].Stash, two[1].Graph
	if o.First == 0 {
		s.WeightGrad = s.Backward
		return nil
	}
	three, err := split.Run(g, passOf, []split.Phase{
		forward, {Own: []int{inputClass}, Recompute: again, Again: operandOf(m), Stash: "wstash/"},
		{Own: []int{weightClass}, Again: operandOf(m)},
	})
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(three[0].Stash, s.Stash) {
		panic("model: the whole backward pass and its two programs need different values")
	}
	s.InputGrad, s.WeightStash, s.WeightGrad = three[1].Graph, three[1].Stash, three[2].Graph
	return nil
}
