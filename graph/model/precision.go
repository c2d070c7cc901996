package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// InPrecision returns a model whose matrix products have operands of a dtype, f16 or bf16 (Micikevicius et al., Mixed
// Precision Training, arXiv 1710.03740). Parameters, sums, norms, softmax, rotations, the loss, the residual stream and
// all stored gradients stay f32. The activations that a Llama's backward pass needs are kept in the dtype. With f32 it
// is the model itself. Decoders are always f32.
func InPrecision(m Model, d graph.DType) Model {
	if d == graph.F32 {
		return m
	}
	return rounded{m, d}
}

// rounded is a model with rounded operands.
type rounded struct {
	Model
	dtype graph.DType
}

func (r rounded) network(b *graph.Builder, batch int) (network, error) {
	n, err := r.Model.network(b, batch)
	if err != nil {
		return nil, err
	}
	return n.in(r.dtype), nil
}

func (r rounded) Stage(o StageOptions) (*Stage, error) { return newStage(r, o) }
func (r rounded) Eval(batch int, segments bool) (*graph.Graph, error) {
	return evaluation(r, batch, segments)
}
func (r rounded) TopK(batch, k int, segments bool) (*graph.Graph, error) {
	return likeliest(r, batch, k, segments)
}

func (r rounded) WithSeqLen(seqLen int) (Model, error) {
	m, err := r.Model.WithSeqLen(seqLen)
	return InPrecision(m, r.dtype), err
}

// operandOf returns a predicate of the nodes that round a parameter for a product. The backward pass repeats them:
// otherwise their results would be stashed for each microbatch.
func operandOf(m Model) func(*graph.Node) bool {
	parameters := map[string]bool{}
	for _, p := range m.Parameters() {
		parameters[p.Name] = true
	}
	return func(n *graph.Node) bool {
		if _, cast := n.Op.(*op.CastOp); !cast {
			return false
		}
		v, ok := n.Inputs[0].Node.Op.(*graph.Variable)
		return ok && parameters[v.ID]
	}
}

// precision is the dtype that operands of matrix products are rounded to; f32 does not round.
type precision graph.DType

// operand is x in the dtype, for a product.
func (p precision) operand(x *graph.Value) *graph.Value {
	if _, cast := x.Node.Op.(*op.CastOp); cast && x.Node.Inputs[0].DType == graph.DType(p) {
		return x.Node.Inputs[0] // x is a rounded value, cast back to f32
	}
	return op.Cast(x, graph.DType(p))
}

// round is x rounded to the dtype, in f32. The backward pass reads the rounded value, since the stash is in the dtype;
// with round the forward pass computes with the same values.
func (p precision) round(x *graph.Value) *graph.Value { return op.Cast(p.operand(x), graph.F32) }

// attention is op.AttentionOp of operands, with a window, or all tokens for 0, and segments, which may be nil. The
// result is in the dtype too if the kernels support it: the product that reads it would round it, and the backward pass
// needs no more precision.
func (p precision) attention(q, k, v, segments *graph.Value, window int) *graph.Value {
	o := &op.AttentionOp{Window: window}
	if p != precision(graph.F32) && q.Shape[3]%4 == 0 {
		o.Result = graph.DType(p)
	}
	if segments == nil {
		return o.Apply(q, k, v)
	}
	o.Form = op.WithinSegments
	return o.Apply(q, k, v, segments)
}

// product is x·wᵀ, for x [..., in] and a matrix w [out, in]: f32.
func (p precision) product(x, w *graph.Value) *graph.Value {
	return op.MatMul(p.operand(x), p.operand(w), false, true)
}
