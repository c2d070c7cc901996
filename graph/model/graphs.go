package model

import (
	"github.com/gpupipe/gpupipe/graph"
)

// The names of the graphs' inputs and outputs.
const (
	TokensInput   = "tokens"   // u32 [B, T]; of a cached Decoder u32 [1, 1] or [1, N]
	TargetsInput  = "targets"  // u32 [B, T]
	SegmentsInput = "segments" // u32 [B, T]; optional, as are weights and scalars: see Inputs
	WeightsInput  = "weights"  // f32 [B, T]
	RealInput     = "real"     // u32 [B, T]: 1 for tokens of documents, 0 for padding; read by mixtures of experts
	ScalarsInput  = "scalars"  // f32 [n]
	PositionInput = "position" // u32 [1], of a Decoder
	LastInput     = "last"     // u32 [1], of Decoder.Prefill

	LossOutput   = "loss"   // f32 [1]
	LossesOutput = "losses" // f32 [B]
	// RoutingOutput is f32 [L, E + RoutingStats], a row for each mixture of experts: how many rows of the microbatch
	// each expert has, and the statistics, all without padding.
	RoutingOutput = "routing"
	LogitsOutput  = "logits" // f32 [V]

	// LossVariable holds the mean loss of a batch's microbatches so far, each divided by their number: f32 [1].
	LossVariable = "loss"
)

// grad is the graph that Config.Grad documents.
func grad(m Model, batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	o := StageOptions{Last: m.Units(), Batch: batch, Microbatches: microbatches}
	return training(m, o, func(b *graph.Builder) source { return b.Input }, accumulate)
}

// evaluation is the graph that Config.Eval documents.
func evaluation(m Model, batch int, segments bool) (*graph.Graph, error) {
	return newSpan(m, 0, m.Units(), batch).build(func(s *span) {
		s.source, s.inputs.Segments = s.b.Input, segments
		s.eval()
	})
}
