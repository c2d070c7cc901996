package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Loss adds to a graph what is to become small: given logits f32 [N, V] and targets u32 [N] of a microbatch, a number for each
// token, f32 [N], of which the mean is taken, or one for all, f32 [] or [1]. It is called several times, and must add the same
// nodes each time.
type Loss func(logits, targets *graph.Value) *graph.Value

// CrossEntropy is the negative log-likelihood in nats of each target: f32 [N].
func CrossEntropy(logits, targets *graph.Value) *graph.Value {
	perToken, _ := op.CrossEntropy(logits, targets, op.CrossEntropyOptions{Ignore: -1})
	return perToken
}
