package model

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Loss adds to a graph what is to become small: a number for each of a microbatch's tokens, f32 [N], of which the mean is taken, or
// one for all, f32 [] or [1]. Where there are weights, numbers for each token are multiplied by them first, unless they depend on
// them already; one for all must depend on them. A gradient must flow to logits or hidden. It is called several times, and must
// add the same nodes each time.
type Loss func(in LossInputs) *graph.Value

// LossInputs is what a loss may read; what it does not read is not computed.
type LossInputs struct {
	Logits     *graph.Value            // f32 [N, V]
	Targets    *graph.Value            // u32 [N]
	Hidden     *graph.Value            // f32 [N, d_model]: what the head's matrix is multiplied with; nil: of a Written model it is not known
	Weights    *graph.Value            // f32 [N]; nil: there are none
	Parameters map[string]*graph.Value // of the head by name: the norm, and the matrix, of a tied model too, as lm_head.weight
	Aligned    map[string]*graph.Value // by name: [N, …]
	Scalars    *graph.Value            // f32 [n]; nil: there are none
}

// LossParameters lists LossInputs.Parameters.
func (c Config) LossParameters() []graph.Named {
	return []graph.Named{{ID: normName, Type: graph.T(graph.F32, c.DModel)}, {ID: headName, Type: graph.T(graph.F32, c.VocabSize, c.DModel)}}
}

// CrossEntropy is the negative log-likelihood in nats of each target: f32 [N].
func CrossEntropy(in LossInputs) *graph.Value {
	perToken, _ := op.CrossEntropy(in.Logits, in.Targets, op.CrossEntropyOptions{Ignore: -1})
	return perToken
}

// losses applies a loss to the logits [B, T, V].
func (s *span) losses(logits, targets *graph.Value, loss Loss) (y *graph.Value) {
	s.b.Scope(s.headScope(), func() {
		in := s.lossInputs(logits, targets)
		y = loss(in)
		rows := in.Targets.Shape
		if y.DType != graph.F32 || y.Shape.Len() != 1 && !y.Shape.Equal(rows) {
			s.b.Fail("loss", "it is %v, expected f32[%d], a number for each token, or a single f32", y.Type, rows[0])
		}
		switch {
		case in.Weights == nil || s.dependsOn(y, in.Weights):
		case y.Shape.Equal(rows):
			y = op.Mul(y, in.Weights)
		default:
			s.b.Fail("loss", "it is one number, %v, and does not depend on weights: where there are weights, give a number for each "+
				"token, f32[%d], or read them", y.Type, rows[0])
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

// dependsOn tells whether a value is made from another.
func (s *span) dependsOn(v, from *graph.Value) bool {
	made := map[*graph.Node]bool{from.Node: true}
	for i := from.Node.ID + 1; i <= v.Node.ID; i++ {
		n := s.b.Node(i)
		made[n] = slices.ContainsFunc(n.Inputs, func(in *graph.Value) bool { return made[in.Node] })
	}
	return made[v.Node]
}
