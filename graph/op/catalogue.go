package op

import (
	"cmp"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Catalogue returns a prototype of every op, by name. A family's file lists the ops of the family.
func Catalogue() []graph.Op {
	ops := slices.Concat(
		activations(), arithmetic(), attentions(), comparisons(), concatenations(), crossEntropies(), embeddings(), generators(),
		groupedProducts(), movements(), norms(), randoms(), reductions(), softmaxes(), unary(), []graph.Op{
			new(MatMulOp), new(CastOp), new(StopGradientOp), new(RoPEOp), &SoftcapOp{Cap: 1}, new(StochasticRoundOp), new(TakeOp),
			new(TopKOp), new(GroupRowsOp), new(PutRowsOp), new(QROp), new(EighOp),
		},
	)
	slices.SortFunc(ops, func(a, b graph.Op) int { return cmp.Compare(a.Name(), b.Name()) })
	return ops
}
