package model

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// The outputs of TopK.
const (
	TopIDsOutput      = "ids"      // u32 [B·T, k]
	TopLogProbsOutput = "logprobs" // f32 [B·T, k]
)

// likeliest is the graph that Config.TopK documents.
func likeliest(m Model, batch, k int, segments bool) (*graph.Graph, error) {
	if vocab := m.Size().VocabSize; k < 1 || k > vocab {
		return nil, fmt.Errorf("k: found %d, expected 1 to %d, the size of the vocabulary", k, vocab)
	}
	return newSpan(m, 0, m.Units(), batch).build(func(s *span) {
		s.source, s.inputs.Segments = s.b.Input, segments
		s.forward(func(in LossInputs) *graph.Value {
			ids, logs := topK(in.Logits, k)
			s.b.Output(TopIDsOutput, op.Cast(ids, graph.U32))
			s.b.Output(TopLogProbsOutput, logs)
			return op.Sum(logs, []int{1}, false) // a loss that no output needs
		})
	})
}

// topK finds and masks the largest of each row of logits [N, V], k times. Ids are f32 [N, k], exact up to 2²⁴.
func topK(logits *graph.Value, k int) (ids, logs *graph.Value) {
	const least = -3e38 // WGSL has no literal of infinity
	b, last := logits.Builder(), []int{1}
	column := op.Iota(b, graph.F32, 1, logits.Shape...)
	none := op.Scalar(b, graph.F32, float64(logits.Shape[1]))
	top := op.ReduceMax(logits, last, true)
	lse := op.Add(op.Log(op.Sum(op.Exp(op.Sub(logits, top)), last, true)), top)
	var allIDs, allLogs []*graph.Value
	for left := logits; len(allIDs) < k; {
		top = op.ReduceMax(left, last, true)
		id := op.ReduceMin(op.Where(op.Equal(left, top), column, none), last, true)
		allIDs, allLogs = append(allIDs, id), append(allLogs, op.Sub(top, lse))
		left = op.Where(op.Equal(column, id), op.Scalar(b, graph.F32, least), left)
	}
	return op.Concat(1, allIDs...), op.Concat(1, allLogs...)
}
