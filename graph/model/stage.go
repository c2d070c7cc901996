package model

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/split"
)

// StageOptions choose a part of a model and how it is trained.
type StageOptions struct {
	First, Last  int // units [First, Last)
	Batch        int // sequences a microbatch
	Microbatches int // of the whole batch: the loss and its gradient are divided by it
	// Recompute has the backward pass compute the forward pass again instead of reading a stash; the last part keeps the loss.
	// A Forward that stores less has other kernels for the same mathematics: a device's compiler may make their bits differ.
	Recompute bool
	Loss      Loss // what is trained, of the last part; nil is CrossEntropy. Eval is always CrossEntropy
	Inputs    Inputs
	// Scale is a variable f32 [n] that the last part's backward pass reads: gradients are those of its first element times the loss.
	// Without a name gradients are those of the loss.
	Scale graph.Named
}

// Stage is the programs of a part of a model. They have no inputs: all that they read is variables.
//
//	tokens, targets    u32 [B, T]           read by the first and the last part
//	segments           u32 [B, T]           read by parts with layers, if Inputs has them
//	weights            f32 [B, T]           read by the last part, if Inputs has them, as what follows if its loss does
//	aligned/NAME       [B, T, …]
//	scalars            f32 [n]
//	Scale              f32 [n]              read by the last part, if StageOptions has it
//	act/in, grad/out   f32 [B, T, d_model]  read: what the parts before and after send
//	act/out, grad/in   f32 [B, T, d_model]  assigned: what they are sent
//	NAME               a parameter, read; in the head of a tied model, that of the embedding
//	grad/NAME          the batch's gradient so far, assigned; Config.Gradients says what is to be summed
//	loss               f32 [1], the batch's mean loss so far, assigned by the last part's backward pass
//	stash/N, wstash/N  see Stash
//
// The first microbatch of a batch runs Backward, which stores the gradients and the loss; the others run BackwardNext, which
// adds to them. The forward pass is the same for all. The last part's Forward also has the output "loss", the microbatch's mean.
type Stage struct {
	Forward, Backward, BackwardNext *graph.Graph
	// The backward pass in two halves: InputGrad assigns grad/in, then WeightGrad or WeightGradNext do the rest. The first part
	// sends no gradient: its InputGrad is nil, and its WeightGrad is Backward.
	InputGrad, WeightGrad, WeightGradNext *graph.Graph
	// Eval is the forward pass alone; that of the last part outputs "losses" f32 [B], the mean of each sequence.
	Eval *graph.Graph
	// Stash is what Forward keeps for all programs of the backward pass, and WeightStash what InputGrad keeps for WeightGrad:
	// one of each for every microbatch in flight, as are act/in, tokens, targets and the other inputs.
	Stash, WeightStash []graph.Named
	// Parameters are those that the programs read, in the model's order.
	Parameters []Parameter
}

// The classes of nodes: the forward pass, the microbatch's mean loss, gradients of activations, gradients of weights.
const (
	forwardClass = iota
	lossClass
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
		return lossClass
	}
	return forwardClass
}

// Stage builds the programs of a part of the model.
func (c Config) Stage(o StageOptions) (*Stage, error) { return newStage(c, o) }

func newStage(m architecture, o StageOptions) (*Stage, error) {
	switch {
	case o.First < 0 || o.First >= o.Last || o.Last > m.Units():
		return nil, fmt.Errorf("units [%d, %d): expected a part of the model's %d", o.First, o.Last, m.Units())
	case o.Batch < 1 || o.Microbatches < 1:
		return nil, fmt.Errorf("%d microbatches of %d sequences: expected at least one of one", o.Microbatches, o.Batch)
	}
	if err := o.Inputs.check(); err != nil {
		return nil, err
	}
	s := &Stage{Parameters: m.Reads(o.First, o.Last)}
	var err error
	if s.Eval, err = newSpan(m, o.First, o.Last, o.Batch).build((*span).eval); err != nil {
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

// Reads lists the parameters that units [first, last) use, in the model's order.
func (c Config) Reads(first, last int) []Parameter {
	ps := within(c.Parameters(), c, first, last)
	if c.TieEmbeddings && first > 0 && last == c.Units() {
		ps = append(within(c.Parameters(), c, 0, 1), ps...)
	}
	return ps
}

// training is the forward and the backward pass in one graph; from says what brings what changes with the microbatch.
func training(m architecture, o StageOptions, from func(*graph.Builder) source, accumulate bool) (*graph.Graph, error) {
	if o.Loss == nil {
		o.Loss = CrossEntropy
	}
	s := newSpan(m, o.First, o.Last, o.Batch)
	s.inputs, s.scale = o.Inputs, o.Scale
	return s.build(func(s *span) {
		s.source = from(s.b)
		s.grad(o.Microbatches, accumulate, o.Loss)
	})
}

// passes cuts the training graph into the forward pass and the backward pass, the latter whole and in halves.
func (s *Stage) passes(m architecture, o StageOptions, accumulate bool) error {
	g, err := training(m, o, func(b *graph.Builder) source { return b.Variable }, accumulate)
	if err != nil {
		return err
	}
	forward := split.Part{Own: []int{forwardClass, lossClass}, Stash: "stash/"}
	var again []int
	if o.Recompute {
		again = []int{forwardClass}
	}
	two, err := split.Run(g, passOf, []split.Part{forward, {Own: []int{inputClass, weightClass}, Recompute: again, Again: operandOf(m)}})
	if err != nil {
		return err
	}
	s.Forward, s.Stash, s.Backward = two[0].Graph, two[0].Stash, two[1].Graph
	if o.First == 0 {
		s.WeightGrad = s.Backward
		return nil
	}
	three, err := split.Run(g, passOf, []split.Part{
		forward, {Own: []int{inputClass}, Recompute: again, Again: operandOf(m), Stash: "wstash/"}, {Own: []int{weightClass}, Again: operandOf(m)},
	})
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(three[0].Stash, s.Stash) {
		panic("model: the backward pass needs other values whole than in halves")
	}
	s.InputGrad, s.WeightStash, s.WeightGrad = three[1].Graph, three[1].Stash, three[2].Graph
	return nil
}
