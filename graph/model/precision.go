package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// InPrecision is a model whose matrix products have operands of a dtype, f16 or bf16 (Micikevicius et al., Mixed Precision Training,
// arXiv 1710.03740). Parameters, sums, norms, softmax, rotations, the loss, the residual stream and all gradients that are stored are
// f32; what the backward pass needs of a Llama's activations is kept in the dtype. With f32 it is the model itself.
func InPrecision(m Model, d graph.DType) Model {
	if d == graph.F32 {
		return m
	}
	return rounded{m.(architecture), d}
}

// rounded is a model with rounded operands.
type rounded struct {
	architecture
	dtype graph.DType
}

func (r rounded) network(b *graph.Builder, batch int) (network, error) {
	n, err := r.architecture.network(b, batch)
	if err != nil {
		return nil, err
	}
	return n.in(r.dtype), nil
}

func (r rounded) Stage(o StageOptions) (*Stage, error)    { return newStage(r, o) }
func (r rounded) Eval(batch int) (*graph.Graph, error)    { return evaluation(r, batch) }
func (r rounded) TopK(batch, k int) (*graph.Graph, error) { return likeliest(r, batch, k) }

// operandOf tells the nodes that round a parameter for a product. The backward pass does it again: what the forward pass has made would be
// kept for each microbatch.
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

// precision is a dtype that operands of matrix products are rounded to, or f32: those that there are.
type precision graph.DType

// operand is what a product takes in place of x.
func (p precision) operand(x *graph.Value) *graph.Value {
	if _, cast := x.Node.Op.(*op.CastOp); cast && x.Node.Inputs[0].DType == graph.DType(p) {
		return x.Node.Inputs[0] // it has been rounded
	}
	return op.Cast(x, graph.DType(p))
}

// kept is x in f32 as the backward pass finds it, so that both passes compute with the same numbers: rounded, since that is how it is stored.
func (p precision) kept(x *graph.Value) *graph.Value { return op.Cast(p.operand(x), graph.F32) }

// attention is op.SegmentedAttention of operands. The result is stored in the dtype too, where the kernels can: products would round it, and
// the backward pass needs no more of it.
func (p precision) attention(q, k, v, segments *graph.Value) *graph.Value {
	if p == precision(graph.F32) || q.Shape[3]%4 != 0 {
		return op.SegmentedAttention(q, k, v, segments)
	}
	in := []*graph.Value{q, k, v}
	if segments != nil {
		in = append(in, segments)
	}
	return graph.Apply1(&op.AttentionOp{Result: graph.DType(p)}, in...)
}

// product is x·wᵀ, for x [..., in] and a matrix w [out, in]: f32.
func (p precision) product(x, w *graph.Value) *graph.Value {
	return op.MatMul(p.operand(x), p.operand(w), false, true)
}
