package model

import (
	"github.com/gpupipe/gpupipe/graph"
)

// The names of the graphs' inputs and outputs.
const (
	TokensInput   = "tokens"   // u32 [B, T]; of a cached Decoder u32 [1, 1]
	TargetsInput  = "targets"  // u32 [B, T]
	SegmentsInput = "segments" // u32 [B, T]; optional, as are weights and scalars: see Inputs
	WeightsInput  = "weights"  // f32 [B, T]
	ScalarsInput  = "scalars"  // f32 [n]
	PositionInput = "position" // u32 [1], of a Decoder

	LossOutput   = "loss"   // f32 [1]
	LossesOutput = "losses" // f32 [B]
	LogitsOutput = "logits" // f32 [V]

	// LossVariable holds the mean loss of a batch's microbatches so far, each divided by their number: f32 [1].
	LossVariable = "loss"
)

// Grad is the graph of one microbatch of a batch of so many microbatches, each of batch sequences. It outputs "loss",
// the microbatch's mean f32 [1]. It stores the microbatch's share of the whole batch's mean loss in the variable
// "loss", and the share of that loss's gradient in the variables that Gradients names; if accumulate is set, it adds
// the shares to the variables.
func (c Config) Grad(batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	return grad(c, batch, microbatches, accumulate)
}

func grad(m Model, batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	o := StageOptions{Last: m.Units(), Batch: batch, Microbatches: microbatches}
	return training(m, o, func(b *graph.Builder) source { return b.Input }, accumulate)
}

// Eval is the graph that outputs "losses", the mean negative log-likelihood of each of batch sequences: f32 [batch].
func (c Config) Eval(batch int) (*graph.Graph, error) { return evaluation(c, batch) }

func evaluation(m Model, batch int) (*graph.Graph, error) {
	return newSpan(m, 0, m.Units(), batch).build(func(s *span) {
		s.source = s.b.Input
		s.eval()
	})
}
