package op

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// catalogue lists the ops. A family's file lists the ops of the family.
func catalogue() []func() graph.Op {
	return slices.Concat(
		activations(), arithmetic(), attentions(), comparisons(), concatenations(), crossEntropies(), embeddings(), generators(),
		groupedProducts(), movements(), norms(), randoms(), reductions(), softmaxes(), unary(), []func() graph.Op{
			made[MatMulOp], made[CastOp], made[StopGradientOp], made[RoPEOp], func() graph.Op { return &SoftcapOp{Cap: 1} },
			made[StochasticRoundOp], made[TakeOp], made[TopKOp], made[GroupRowsOp], made[PutRowsOp], made[QROp], made[EighOp],
		},
	)
}

// made makes an op with zero attributes.
func made[T any, P interface {
	*T
	graph.Op
}]() graph.Op {
	return P(new(T))
}

func init() { graph.Register(catalogue()...) }
