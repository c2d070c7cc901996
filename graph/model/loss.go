package model

import (
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Loss adds a training loss to a graph: f32 [N], one value for each of a microbatch's tokens, or a single value, f32 []
// or [1]. The loss of the microbatch is the mean of the values. If there are weights, values of tokens are multiplied
// by them, unless the loss read them already; a single value must depend on them. A gradient must flow to the logits or
// to hidden. A Loss is called several times, and must add the same nodes each time.
type Loss func(in LossInputs) *graph.Value

// LossInputs is what a loss may read. Values that it does not read are not computed.
type LossInputs struct {
	Logits     *graph.Value            // f32 [N, V]
	Targets    *graph.Value            // u32 [N]
	Hidden     *graph.Value            // f32 [N, d_model], which the head's matrix multiplies; nil for a Written model
	Weights    *graph.Value            // f32 [N]; may be nil
	Parameters map[string]*graph.Value // of the head by name: a tied model has lm_head.weight, too
	Aligned    map[string]*graph.Value // by name: [N, …]
	Scalars    *graph.Value            // f32 [n]; may be nil
}

// CrossEntropy is the negative log-likelihood in nats of each target: f32 [N].
func CrossEntropy(in LossInputs) *graph.Value {
	perToken, _ := op.CrossEntropy(in.Logits, in.Targets, op.CrossEntropyOptions{Ignore: -1})
	return perToken
}

// NoTarget is the target of a position whose loss an evaluation counts as 0.
const NoTarget = math.MaxUint32

// evaluationLoss is CrossEntropy, and 0 where there is no target.
func evaluationLoss(in LossInputs) *graph.Value {
	perToken, _ := op.CrossEntropy(in.Logits, in.Targets, op.CrossEntropyOptions{Ignore: NoTarget})
	return perToken
}

// losses applies a loss to the logits [B, T, V].
func (s *span) losses(logits, targets *graph.Value, loss Loss) (y *graph.Value) {
	s.b.Scope(s.headScope(), func() {
		in := s.lossInputs(logits, targets)
		y = loss(in)
		rows := in.Targets.Shape
		if y.DType != graph.F32 || y.Shape.Len() != 1 && !y.Shape.Equal(rows) {
			s.b.Fail("loss", "it is %v, expected f32[%d], a value for each token, or a single f32", y.Type, rows[0])
		}
		switch {
		case in.Weights == nil || s.dependsOn(y, in.Weights):
		case y.Shape.Equal(rows):
			y = op.Mul(y, in.Weights)
		default:
			s.b.Fail("loss", "it is a single value, %v, that does not depend on the weights of the tokens: expected a value for each "+
				"token, f32[%d], or one that depends on them", y.Type, rows[0])
		}
	})
	return y
}

func (s *span) lossInputs(logits, targets *graph.Value) LossInputs {
	rows := targets.Shape.Len()
	in := LossInputs{Logits: op.Reshape(logits, rows, s.VocabSize), Targets: op.Reshape(targets, rows), Aligned: map[string]*graph.Value{}}
	var hidden *graph.Value
	if hidden, in.Parameters = s.net.head(); hidden != nil {
		in.Hidden = op.Reshape(hidden, rows, s.Size.Hidden)
	}
	if s.inputs.Weights {
		in.Weights = op.Reshape(s.source(WeightsInput, s.perToken(s.batch, graph.T(graph.F32))), rows)
	}
	for _, a := range s.inputs.Aligned {
		v := s.source(AlignedInput(a.ID), s.perToken(s.batch, a.Type))
		in.Aligned[a.ID] = op.Reshape(v, append([]int{rows}, a.Type.Shape...)...)
	}
	if n := s.inputs.Scalars; n > 0 {
		in.Scalars = s.source(ScalarsInput, graph.T(graph.F32, n))
	}
	return in
}

// dependsOn reports whether a value is computed from another.
func (s *span) dependsOn(v, from *graph.Value) bool {
	made := map[*graph.Node]bool{from.Node: true}
	for i := from.Node.ID + 1; i <= v.Node.ID; i++ {
		n := s.b.Node(i)
		made[n] = slices.ContainsFunc(n.Inputs, func(in *graph.Value) bool { return made[in.Node] })
	}
	return made[v.Node]
}
