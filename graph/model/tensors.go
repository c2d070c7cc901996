package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// This file lists the trained tensors of a Config.

// Names of parameters, as Hugging Face's Llama has them. Those of a layer are its layerName.
const (
	embedName = "model.embed_tokens.weight"
	normName  = "model.norm.weight"
	headName  = "lm_head.weight"

	queryNorm, keyNorm = "self_attn.q_norm", "self_attn.k_norm"
)

func layerName(i int, name string) string { return fmt.Sprintf("model.layers.%d.%s.weight", i, name) }

// InitStd is the standard deviation of initial weights. Matrices that write into the residual stream have a smaller
// one, divided by √(2·n_layers), so that the stream's variance does not grow with depth (as in GPT-2).
const InitStd = 0.02

// branchNorms are the names of the norms of one branch of a block: of its input and of its result. "" is no norm.
type branchNorms struct{ before, after string }

// blockNorms are the names of a block's norms, as published models have them: Llama's before, OLMo 2's after, Gemma 2's
// before and after a branch.
func (c Config) blockNorms() (attention, feedForward branchNorms) {
	switch c.Norm.Place {
	case NormPost:
		return branchNorms{"", "post_attention_layernorm"}, branchNorms{"", "post_feedforward_layernorm"}
	case NormBoth:
		return branchNorms{"input_layernorm", "post_attention_layernorm"}, branchNorms{"pre_feedforward_layernorm",
			"post_feedforward_layernorm"}
	}
	return branchNorms{"input_layernorm", ""}, branchNorms{"post_attention_layernorm", ""}
}

// queryWidth and keyWidth are the widths of all query heads, and of all key or value heads, together.
func (c Config) queryWidth() int { return c.NHeads * c.HeadDim() }
func (c Config) keyWidth() int   { return c.NKVHeads * c.HeadDim() }

// tensors collects parameters in the order in which they are used.
type tensors struct {
	Config
	list []Parameter
}

func (t *tensors) matrix(name, unit string, std float64, out, in int) {
	t.list = append(t.list, Parameter{Name: name, Type: graph.T(graph.F32, out, in), Unit: unit, Std: std})
}

// residual is the standard deviation of matrices that write into the residual stream.
func (t *tensors) residual() float64 {
	if t.ZeroInit {
		return 0
	}
	return InitStd / math.Sqrt(2*float64(t.NLayers))
}

// norm adds the weight of a norm, if it has one.
func (t *tensors) norm(name, unit string, width int) {
	if !t.Norm.Weight {
		return
	}
	p := Parameter{Name: name, Type: graph.T(graph.F32, width), Unit: unit, Fill: 1}
	if t.Norm.UnitOffset {
		p.Fill = 0
	}
	t.list = append(t.list, p)
}

// Parameters lists the trained tensors in the order in which they are used. Matrices are [out, in].
func (c Config) Parameters() []Parameter {
	t := &tensors{Config: c}
	t.matrix(embedName, EmbedScope, InitStd, c.VocabSize, c.DModel)
	for i := range c.NLayers {
		t.layer(i)
	}
	t.norm(normName, HeadScope, c.DModel)
	if !c.TieEmbeddings {
		t.matrix(headName, HeadScope, InitStd, c.VocabSize, c.DModel)
	}
	return t.list
}

func (t *tensors) layer(i int) {
	attention, feedForward := t.blockNorms()
	unit := attentionUnit(i)
	norm := func(name string, width int) {
		if name != "" {
			t.norm(layerName(i, name), unit, width)
		}
	}
	matrix := func(name string, std float64, out, in int) {
		t.matrix(layerName(i, name), unit, std, out, in)
	}
	norm(attention.before, t.DModel)
	matrix("self_attn.q_proj", InitStd, t.queryWidth(), t.DModel)
	matrix("self_attn.k_proj", InitStd, t.keyWidth(), t.DModel)
	matrix("self_attn.v_proj", InitStd, t.keyWidth(), t.DModel)
	if query, key := t.qkNorms(); query > 0 {
		norm(queryNorm, query)
		norm(keyNorm, key)
	}
	matrix("self_attn.o_proj", t.residual(), t.DModel, t.queryWidth())
	norm(attention.after, t.DModel)
	unit = feedForwardUnit(i)
	norm(feedForward.before, t.DModel)
	if l := t.Layer(i); l.MoE {
		t.mixture(i)
	} else {
		t.feedForward(i, densePrefix, l.DFF)
	}
	norm(feedForward.after, t.DModel)
}

// feedForward adds a feed-forward layer's matrices [out, in], or stacks of them: [experts, out, in].
func (t *tensors) feedForward(i int, prefix string, width int, experts ...int) {
	add := func(name string, std float64, out, in int) {
		t.list = append(t.list, Parameter{Name: layerName(i, prefix+"."+name), Type: graph.T(graph.F32,
			append(slices.Clone(experts), out, in)...), Unit: feedForwardUnit(i), Std: std})
	}
	if t.FFN.Kind != ReLU2 {
		add("gate_proj", InitStd, width, t.DModel)
	}
	add("up_proj", InitStd, width, t.DModel)
	add("down_proj", t.residual(), t.DModel, width)
}

func (t *tensors) mixture(i int) {
	m := t.MoE
	t.list = append(t.list, Parameter{Name: layerName(i, routerName), Type: graph.T(graph.F32, m.Experts, t.DModel),
		Unit: feedForwardUnit(i), Std: InitStd, Role: Router})
	if m.biased() {
		t.list = append(t.list, Parameter{Name: balancingBias(i), Type: graph.T(graph.F32, m.Experts), Unit: feedForwardUnit(i),
			Role: BalancingBias, BalanceRate: m.Balance.Bias, ProportionalBalance: m.Balance.Proportional})
	}
	t.feedForward(i, expertsPrefix, m.DFF, m.Experts)
	if m.Shared > 0 {
		t.feedForward(i, sharedPrefix, m.Shared*m.DFF)
	}
}

// qkNorms are the lengths of the weights of the norms of queries and keys; 0: there are none.
func (c Config) qkNorms() (query, key int) {
	switch {
	case !c.Norm.Weight || !c.Norm.QKWeight:
		return 0, 0
	case c.Norm.QK == QKHead:
		return c.HeadDim(), c.HeadDim()
	case c.Norm.QK == QKFull:
		return c.queryWidth(), c.keyWidth()
	}
	return 0, 0
}

// Count is the number of trained elements; a tied embedding counts once.
func (c Config) Count() int64 { return count(c.Parameters()) }

// ActiveCount is Count without the experts that a token does not choose.
func (c Config) ActiveCount() int64 {
	var idle int64
	for _, p := range c.Parameters() {
		if len(p.Type.Shape) == 3 {
			idle += int64(p.Type.Shape.Len()) / int64(c.MoE.Experts) * int64(c.MoE.Experts-c.MoE.TopK)
		}
	}
	return c.Count() - idle
}

// FLOPsPerToken estimates the arithmetic of one trained token: 6 an active element (forward and backward), and 12 a
// query's element and the key that it meets. Without a window these are half of the context on average.
func (c Config) FLOPsPerToken() float64 {
	matrices := float64(c.ActiveCount())
	if !c.TieEmbeddings {
		matrices -= float64(c.VocabSize * c.DModel) // the input embedding is looked up, not multiplied
	}
	attention, seq := 0.0, float64(c.SeqLen)
	for i := range c.NLayers {
		keys := seq / 2
		if w := float64(c.Layer(i).Window); w > 0 && w < seq {
			keys = w - w*w/(2*seq)
		}
		attention += 12 * float64(c.queryWidth()) * keys
	}
	return 6*matrices + attention
}
