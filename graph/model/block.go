package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// This file is one layer of a Config: attention and a feed-forward layer, each a branch of the residual stream.

// linear multiplies x [..., in], in the model's precision, by the layer's matrix [out, in].
func (n *net) linear(layer int, name string, x *graph.Value) *graph.Value {
	return n.product(x, n.parameter(layerName(layer, name)))
}

// rms is the norm of x, in the model's precision, along the last axis: f32. The norm has the weight of a name, or none
// for "" and in models without weights.
func (n *net) rms(name string, x *graph.Value) *graph.Value {
	var weight *graph.Value
	switch {
	case name == "" || !n.Norm.Weight:
		weight = op.Full(n.b, graph.F32, 1, x.Shape[len(x.Shape)-1])
	case n.Norm.UnitOffset:
		weight = op.Shift(n.parameter(name), 1)
	default:
		weight = n.parameter(name)
	}
	return op.RMSNorm(n.round(x), weight, n.Norm.Eps)
}

// branch adds f(x) to the residual stream x. The input of f and its result are normalized if there are norms for them.
// Norms read the residual stream as the backward pass will; the stream itself is never rounded.
func (n *net) branch(layer int, norms branchNorms, x *graph.Value, f func(h *graph.Value) *graph.Value) *graph.Value {
	h := x
	if norms.before != "" {
		h = n.rms(layerName(layer, norms.before), x)
	}
	y := f(n.operand(h))
	if norms.after != "" {
		y = n.rms(layerName(layer, norms.after), y)
	}
	return op.Add(x, y)
}

// attend computes attention of the rotated queries [B, T, H, D], and of the rotated keys and the values [B, T, KV, D].
type attend func(q, k, v *graph.Value) *graph.Value

// layer is one transformer block, x [B, T, d_model] to [B, T, d_model]. position u32 [1] is the position of the first
// token; nil is 0.
func (n *net) layer(i int, x, position *graph.Value, attend attend) *graph.Value {
	return n.feedForwardBranch(i, n.attentionBranch(i, x, position, attend))
}

// attentionBranch is the first half of a block.
func (n *net) attentionBranch(i int, x, position *graph.Value, attend attend) (y *graph.Value) {
	norms, _ := n.blockNorms()
	n.b.Scope(LayerScope(i), func() {
		y = n.branch(i, norms, x, func(h *graph.Value) *graph.Value { return n.selfAttention(i, h, position, attend) })
	})
	return y
}

// feedForwardBranch is the second half of a block.
func (n *net) feedForwardBranch(i int, x *graph.Value) (y *graph.Value) {
	_, norms := n.blockNorms()
	n.b.Scope(LayerScope(i), func() {
		y = n.branch(i, norms, x, func(h *graph.Value) *graph.Value { return n.feedForward(i, h) })
	})
	return y
}

func (n *net) selfAttention(i int, h, position *graph.Value, attend attend) *graph.Value {
	batch, seq := h.Shape[0], h.Shape[1]
	heads := func(name string, count int) *graph.Value {
		return op.Reshape(n.linear(i, name, h), batch, seq, count, n.HeadDim())
	}
	q := n.rotated(i, queryNorm, heads("self_attn.q_proj", n.NHeads), position)
	k := n.rotated(i, keyNorm, heads("self_attn.k_proj", n.NKVHeads), position)
	v := heads("self_attn.v_proj", n.NKVHeads)
	a := op.Reshape(attend(n.operand(q), n.operand(k), n.operand(v)), batch, seq, n.queryWidth())
	return n.linear(i, "self_attn.o_proj", a)
}

// rotated normalizes and rotates queries or keys [B, T, H, D] if the layer does. Norms of heads without weights come
// last, as in nanochat: else YaRN's factor would stay.
func (n *net) rotated(i int, norm string, x, position *graph.Value) *graph.Value {
	if weights, _ := n.qkNorms(); n.Norm.QK == QKHead && weights == 0 {
		return n.qkNorm(i, norm, n.rotate(i, x, position))
	}
	return n.rotate(i, n.qkNorm(i, norm, x), position)
}

func (n *net) rotate(i int, x, position *graph.Value) *graph.Value {
	l, t := n.Layer(i), n.rope
	if !l.Rope {
		return x
	}
	if !l.Scaled && n.unscaled.cos != nil {
		t = n.unscaled
	}
	return op.RoPE(x, t.cos, t.sin, position)
}

// qkNorm normalizes queries or keys [B, T, H, D] if the model does.
func (n *net) qkNorm(layer int, name string, x *graph.Value) *graph.Value {
	if name = layerName(layer, name); !n.Norm.QKWeight {
		name = ""
	}
	switch n.Norm.QK {
	case QKHead:
		return n.rms(name, x)
	case QKFull:
		s := x.Shape
		return op.Reshape(n.rms(name, op.Reshape(x, s[0], s[1], s[2]*s[3])), s...)
	}
	return x
}

// feedForward is the second branch of a layer: a dense feed-forward layer or a mixture of experts.
func (n *net) feedForward(i int, h *graph.Value) *graph.Value {
	if n.Layer(i).MoE {
		return n.mixture(i, h)
	}
	return n.dense(i, densePrefix, h)
}

// dense is a feed-forward layer whose matrices have names with a prefix.
func (n *net) dense(i int, prefix string, h *graph.Value) *graph.Value {
	hidden := n.activated(func(name string) *graph.Value { return n.linear(i, prefix+"."+name, h) })
	return n.linear(i, prefix+".down_proj", hidden)
}

// activated is the input of the down-projection of a feed-forward layer. project multiplies the layer's input by a
// matrix.
func (n *net) activated(project func(name string) *graph.Value) *graph.Value {
	if n.FFN.Kind == ReLU2 {
		return op.SquaredReLU(n.round(project("up_proj")))
	}
	gate, up, activation := n.round(project("gate_proj")), n.round(project("up_proj")), op.SiLU
	if n.FFN.Kind == GeGLU {
		activation = op.GELUTanh
	}
	return op.Mul(n.round(activation(gate)), up)
}

// attentionOf is the first half of a block of whole sequences. With segments [B, T], tokens attend to tokens of their
// own segment only.
func (n *net) attentionOf(i int, x, segments *graph.Value) *graph.Value {
	return n.attentionBranch(i, x, nil, func(q, k, v *graph.Value) *graph.Value {
		return n.attention(q, k, v, segments, n.Layer(i).Window)
	})
}
