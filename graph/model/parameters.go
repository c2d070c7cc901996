package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Parameter is one trained tensor.
type Parameter struct {
	Name  string // as Hugging Face's Llama names it
	Type  graph.Type
	Scope string // the layer that it belongs to: "embed", "layers.0", …, "head"
	// Std is the deviation of the normal distribution around 0 that it starts from; where that is 0, all of it starts as Fill.
	Std, Fill float64
}

// InitStd is the deviation of initial weights; what writes into the residual stream starts smaller, by √(2·n_layers), so
// that the stream's variance does not grow with depth (as GPT-2 and its successors do).
const InitStd = 0.02

// The names that more than one place knows.
const (
	embedName = "model.embed_tokens.weight"
	normName  = "model.norm.weight"
	headName  = "lm_head.weight"

	EmbedScope = "embed"
	HeadScope  = "head"
	LossScope  = "loss" // the mean of a microbatch's losses
)

// LayerScope is the scope of layer i.
func LayerScope(i int) string { return fmt.Sprintf("layers.%d", i) }

// Parameters lists the trained tensors in the order in which they are used. Matrices are [out, in].
func (c Config) Parameters() []Parameter {
	d, kv := c.DModel, c.NKVHeads*c.HeadDim()
	residual := InitStd / math.Sqrt(2*float64(c.NLayers))
	matrix := func(name, scope string, std float64, out, in int) Parameter {
		return Parameter{Name: name, Type: graph.T(graph.F32, out, in), Scope: scope, Std: std}
	}
	norm := func(name, scope string) Parameter {
		return Parameter{Name: name, Type: graph.T(graph.F32, d), Scope: scope, Fill: 1}
	}
	ps := []Parameter{matrix(embedName, EmbedScope, InitStd, c.VocabSize, d)}
	for i := range c.NLayers {
		add := func(name string, std float64, out, in int) {
			ps = append(ps, matrix(layerName(i, name), LayerScope(i), std, out, in))
		}
		ps = append(ps, norm(layerName(i, "input_layernorm"), LayerScope(i)))
		add("self_attn.q_proj", InitStd, d, d)
		add("self_attn.k_proj", InitStd, kv, d)
		add("self_attn.v_proj", InitStd, kv, d)
		add("self_attn.o_proj", residual, d, d)
		ps = append(ps, norm(layerName(i, "post_attention_layernorm"), LayerScope(i)))
		add("mlp.gate_proj", InitStd, c.DFF, d)
		add("mlp.up_proj", InitStd, c.DFF, d)
		add("mlp.down_proj", residual, d, c.DFF)
	}
	ps = append(ps, norm(normName, HeadScope))
	if !c.TieEmbeddings {
		ps = append(ps, matrix(headName, HeadScope, InitStd, c.VocabSize, d))
	}
	return ps
}

func layerName(i int, name string) string { return fmt.Sprintf("model.layers.%d.%s.weight", i, name) }

// Count is the number of trained numbers; a tied embedding counts once.
func (c Config) Count() int64 { return count(c.Parameters()) }

// Tied tells whether the head reads the embedding.
func (c Config) Tied() bool { return c.TieEmbeddings }

// FLOPsPerToken estimates the arithmetic of one trained token: 6 a matrix element (forward and backward), and attention
// over half of the context on average.
func (c Config) FLOPsPerToken() float64 {
	matrices := float64(c.Count())
	if !c.TieEmbeddings {
		matrices -= float64(c.VocabSize * c.DModel) // the input embedding is looked up, not multiplied
	}
	return 6*matrices + 6*float64(c.NLayers)*float64(c.DModel)*float64(c.SeqLen)
}

// Initial returns the parameter's initial numbers: a function of seed and name only.
func (p Parameter) Initial(seed uint64) []float32 {
	n := p.Type.Shape.Len()
	if p.Std > 0 {
		return op.InitNormal(seed, p.Name, n, p.Std)
	}
	return slices.Repeat([]float32{float32(p.Fill)}, n)
}

// Gradient is the name of the variable that holds a parameter's gradient; but see Gradients.
func Gradient(parameter string) string { return "grad/" + parameter }

// Gradients names the variables whose sum, in order, is a parameter's gradient. There are two for a tied embedding, the head's
// share first, since the two may be computed in different places; else one.
func (c Config) Gradients(parameter string) []string {
	if c.TieEmbeddings && parameter == embedName {
		return []string{Gradient(headName), Gradient(embedName)}
	}
	return []string{Gradient(parameter)}
}
