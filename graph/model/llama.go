package model

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// This file is the Llama family: its units, its parameters, and what it computes.

// Names of parameters and scopes, as Hugging Face's Llama has them.
const (
	embedName = "model.embed_tokens.weight"
	normName  = "model.norm.weight"
	headName  = "lm_head.weight"

	EmbedScope = "embed"
	HeadScope  = "head"
)

// LayerScope is the scope of layer i.
func LayerScope(i int) string { return fmt.Sprintf("layers.%d", i) }

func layerName(i int, name string) string { return fmt.Sprintf("model.layers.%d.%s.weight", i, name) }

// InitStd is the standard deviation of initial weights. Matrices that write into the residual stream have a smaller
// one, divided by √(2·n_layers), so that the stream's variance does not grow with depth (as in GPT-2).
const InitStd = 0.02

// Units counts the embedding, the layers, and the head with the loss.
func (c Config) Units() int { return c.NLayers + 2 }

// UnitScope is the scope of a unit, counted from 0.
func (c Config) UnitScope(i int) string {
	switch i {
	case 0:
		return EmbedScope
	case c.NLayers + 1:
		return HeadScope
	}
	return LayerScope(i - 1)
}

// Like is the first layer that computes the same for a layer, and the unit itself for the embedding and the head.
func (c Config) Like(unit int) int {
	if unit == 0 || unit == c.Units()-1 {
		return unit
	}
	for first := range unit - 1 {
		if c.Layer(first) == c.Layer(unit-1) {
			return first + 1
		}
	}
	return unit
}

// queryWidth and keyWidth are the widths of all query heads, and of all key or value heads, together.
func (c Config) queryWidth() int { return c.NHeads * c.HeadDim() }
func (c Config) keyWidth() int   { return c.NKVHeads * c.HeadDim() }

// Parameters lists the trained tensors in the order in which they are used. Matrices are [out, in].
func (c Config) Parameters() []Parameter {
	d := c.DModel
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
		add("self_attn.q_proj", InitStd, c.queryWidth(), d)
		add("self_attn.k_proj", InitStd, c.keyWidth(), d)
		add("self_attn.v_proj", InitStd, c.keyWidth(), d)
		add("self_attn.o_proj", residual, d, c.queryWidth())
		ps = append(ps, norm(layerName(i, "post_attention_layernorm"), LayerScope(i)))
		add("mlp.gate_proj", InitStd, c.FFN.DFF, d)
		add("mlp.up_proj", InitStd, c.FFN.DFF, d)
		add("mlp.down_proj", residual, d, c.FFN.DFF)
	}
	ps = append(ps, norm(normName, HeadScope))
	if !c.TieEmbeddings {
		ps = append(ps, matrix(headName, HeadScope, InitStd, c.VocabSize, d))
	}
	return ps
}

// Count is the number of trained elements; a tied embedding counts once.
func (c Config) Count() int64 { return count(c.Parameters()) }

// Tied reports whether the head reads the embedding.
func (c Config) Tied() bool { return c.TieEmbeddings }

// Gradients names the variables whose sum, in order, is a parameter's gradient. A tied embedding has two, the head's
// share first, since the two shares may be computed on different devices; other parameters have one.
func (c Config) Gradients(parameter string) []string {
	if c.TieEmbeddings && parameter == embedName {
		return []string{Gradient(headName), Gradient(embedName)}
	}
	return []string{Gradient(parameter)}
}

// Reads lists the parameters that units [first, last) use, in the model's order.
func (c Config) Reads(first, last int) []Parameter {
	ps := within(c.Parameters(), c, first, last)
	if c.TieEmbeddings && first > 0 && last == c.Units() {
		ps = append(within(c.Parameters(), c, 0, 1), ps...)
	}
	return ps
}

// LossParameters lists LossInputs.Parameters.
func (c Config) LossParameters() []graph.Named {
	return []graph.Named{{ID: normName, Type: graph.T(graph.F32, c.DModel)}, {ID: headName, Type: graph.T(graph.F32, c.VocabSize, c.DModel)}}
}

// Redundant reports whether a tensor is the frequencies of the rotary embedding or the head of a tied model.
func (c Config) Redundant(tensor string) bool {
	return strings.HasSuffix(tensor, "rotary_emb.inv_freq") || c.TieEmbeddings && tensor == headName
}

// FLOPsPerToken estimates the arithmetic of one trained token: 6 a matrix element (forward and backward), and attention
// over half of the context on average.
func (c Config) FLOPsPerToken() float64 {
	matrices := float64(c.Count())
	if !c.TieEmbeddings {
		matrices -= float64(c.VocabSize * c.DModel) // the input embedding is looked up, not multiplied
	}
	return 6*matrices + 6*float64(c.NLayers)*float64(c.queryWidth())*float64(c.SeqLen)
}

// net holds a model's parameters as values of one graph.
type net struct {
	Config
	precision
	b        *graph.Builder
	params   map[string]*graph.Value
	cos, sin *graph.Value
	last     *graph.Value // LossInputs.Hidden, once the head is built
}

// network builds the model as if its embedding were not tied: see span.
func (c Config) network(b *graph.Builder, _ int) (network, error) {
	c.TieEmbeddings = false
	return c.net(b), nil
}

func (c Config) net(b *graph.Builder) *net {
	n := &net{Config: c, b: b, params: map[string]*graph.Value{}}
	for _, p := range c.Parameters() {
		n.params[p.Name] = b.Variable(p.Name, p.Type)
	}
	cos, sin := op.RoPETables(c.Rope.Theta, c.SeqLen, c.HeadDim())
	table := graph.T(graph.F32, c.SeqLen, c.HeadDim()/2)
	n.cos, n.sin = b.Constant("rope/cos", table, cos), b.Constant("rope/sin", table, sin)
	return n
}

func (n *net) in(d graph.DType) network {
	n.precision = precision(d)
	return n
}

func (n *net) parameters() []Parameter { return n.Parameters() }

// parameter panics if Parameters does not list the name.
func (n *net) parameter(name string) *graph.Value {
	p := n.params[name]
	if p == nil {
		panic(fmt.Sprintf("model: Parameters does not list %q", name))
	}
	return p
}

func (n *net) unit(u int, x *graph.Value, read func(string) *graph.Value) (y *graph.Value) {
	switch u {
	case 0:
		return n.embed(read(TokensInput))
	case n.Units() - 1:
		n.b.Scope(HeadScope, func() {
			n.last = n.kept(n.hidden(x))
			y = n.logits(n.last)
		})
		return y
	}
	return n.block(u-1, x, read(SegmentsInput))
}

func (n *net) head() (*graph.Value, map[string]*graph.Value) {
	return n.last, map[string]*graph.Value{normName: n.parameter(normName), headName: n.parameter(headName)}
}

// embed looks up tokens [B, T]: [B, T, d_model].
func (n *net) embed(tokens *graph.Value) (x *graph.Value) {
	n.b.Scope(EmbedScope, func() { x = op.Embedding(n.parameter(embedName), tokens) })
	return x
}

// linear multiplies x [..., in], in the model's precision, by the layer's matrix [out, in].
func (n *net) linear(layer int, name string, x *graph.Value) *graph.Value {
	return n.product(x, n.parameter(layerName(layer, name)))
}

// norm is the input of a layer's matrices, in the model's precision. It reads the residual stream x as the backward
// pass will; the stream itself is never rounded.
func (n *net) norm(layer int, name string, x *graph.Value) *graph.Value {
	return n.operand(op.RMSNorm(n.kept(x), n.parameter(layerName(layer, name)), n.Norm.Eps))
}

// layer is one transformer block, x [B, T, d_model] to [B, T, d_model]. attend gets the rotated queries [B, T, H, D],
// and the rotated keys and the values [B, T, KV, D]. position is that of the first token, u32 [1]; nil is 0.
func (n *net) layer(i int, x, position *graph.Value, attend func(q, k, v *graph.Value) *graph.Value) (y *graph.Value) {
	batch, seq := x.Shape[0], x.Shape[1]
	n.b.Scope(LayerScope(i), func() {
		h := n.norm(i, "input_layernorm", x)
		heads := func(name string, count int) *graph.Value {
			return op.Reshape(n.linear(i, name, h), batch, seq, count, n.HeadDim())
		}
		q := op.RoPE(heads("self_attn.q_proj", n.NHeads), n.cos, n.sin, position)
		k := op.RoPE(heads("self_attn.k_proj", n.NKVHeads), n.cos, n.sin, position)
		v := heads("self_attn.v_proj", n.NKVHeads)
		a := op.Reshape(attend(n.operand(q), n.operand(k), n.operand(v)), batch, seq, n.queryWidth())
		x = op.Add(x, n.linear(i, "self_attn.o_proj", a))
		h = n.norm(i, "post_attention_layernorm", x)
		gate, up := n.kept(n.linear(i, "mlp.gate_proj", h)), n.kept(n.linear(i, "mlp.up_proj", h))
		y = op.Add(x, n.linear(i, "mlp.down_proj", op.Mul(n.kept(op.SiLU(gate)), up)))
	})
	return y
}

// block is layer i of whole sequences. With segments [B, T], tokens attend to tokens of their own segment only.
func (n *net) block(i int, x, segments *graph.Value) *graph.Value {
	return n.layer(i, x, nil, func(q, k, v *graph.Value) *graph.Value { return n.attention(q, k, v, segments) })
}

// hidden is the last norm: [..., d_model]. Call it in HeadScope.
func (n *net) hidden(x *graph.Value) *graph.Value {
	return op.RMSNorm(n.kept(x), n.parameter(normName), n.Norm.Eps)
}

// logits multiplies the result of the last norm by the head's matrix: [..., vocab_size]. Call it in HeadScope.
func (n *net) logits(hidden *graph.Value) *graph.Value {
	name := headName
	if n.TieEmbeddings {
		name = embedName
	}
	return n.product(hidden, n.parameter(name))
}

// Stage builds the training programs of a chunk of the model.
func (c Config) Stage(o StageOptions) (*Stage, error) { return newStage(c, o) }

// Grad is the graph of one microbatch of a batch of so many microbatches, each of batch sequences. It outputs "loss",
// the microbatch's mean f32 [1]. It stores the microbatch's share of the whole batch's mean loss in the variable
// "loss", and the share of that loss's gradient in the variables that Gradients names; if accumulate is set, it adds
// the shares to the variables.
func (c Config) Grad(batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	return grad(c, batch, microbatches, accumulate)
}

// Eval is the graph that outputs "losses", the mean negative log-likelihood of each of batch sequences: f32 [batch].
func (c Config) Eval(batch int) (*graph.Graph, error) { return evaluation(c, batch) }

// TopK is the graph that predicts the token after each token of batch sequences. It outputs the ids of the k likeliest
// tokens, the likeliest first and the lower id first among equals, and the natural logarithms of their probabilities.
// If logits are NaN, ids may be VocabSize or above.
func (c Config) TopK(batch, k int) (*graph.Graph, error) { return likeliest(c, batch, k) }

// Decoder returns a cached decoder: see Decode and Prefill.
func (c Config) Decoder() (Decoder, error) {
	g, err := c.Decode()
	if err != nil {
		return Decoder{}, err
	}
	d := Decoder{Graph: g, Cached: true, Block: min(prefillTokens, c.SeqLen)}
	if d.Block > 1 {
		d.Prefill, err = c.Prefill(d.Block)
	}
	return d, err
}

// Decode is the graph that takes one token u32 [1, 1] at "position" u32 [1] < SeqLen, keeps its keys and values in
// variables, and outputs the "logits" f32 [V] of the token after it. Positions are fed from 0 upwards. The graph never
// reads what the caches hold beyond the position, so a new text needs no clearing.
func (c Config) Decode() (*graph.Graph, error) { return c.decode(1) }

// Prefill is Decode for a block of tokens u32 [1, block]. The first one is at "position", and the logits are those after
// token "last" u32 [1] < block. What the block holds after that token does not matter. The whole block must be within
// SeqLen.
func (c Config) Prefill(block int) (*graph.Graph, error) { return c.decode(block) }

func (c Config) decode(block int) (*graph.Graph, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return graph.Build(func(b *graph.Builder) {
		n := c.net(b)
		position := b.Input(PositionInput, graph.T(graph.U32, 1))
		x := n.embed(b.Input(TokensInput, graph.T(graph.U32, 1, block)))
		for i := range c.NLayers {
			x = n.layer(i, x, position, func(q, k, v *graph.Value) *graph.Value {
				return op.Attention(q, n.cached(i, "k", k, position), n.cached(i, "v", v, position), position)
			})
		}
		b.Scope(HeadScope, func() {
			x = op.Reshape(x, block, c.DModel)
			if block > 1 {
				x = op.Embedding(x, b.Input(LastInput, graph.T(graph.U32, 1)))
			}
			b.Output(LogitsOutput, op.Reshape(n.logits(n.hidden(x)), c.VocabSize))
		})
	})
}

// cached stores x [1, N, KV, D] in the rows of the cache from position on and returns the whole cache [1, S, KV, D].
func (n *net) cached(layer int, kind string, x, position *graph.Value) *graph.Value {
	block, t := x.Shape[1], graph.T(graph.F32, 1, n.SeqLen, n.NKVHeads, n.HeadDim())
	old := n.b.Variable(fmt.Sprintf("cache/%d/%s", layer, kind), t)
	row := op.Sub(op.Iota(n.b, graph.U32, 1, 1, n.SeqLen), position) // of x; rows of the cache before it wrap
	fresh := op.Reshape(op.Embedding(op.Reshape(x, block, n.keyWidth()), row), t.Shape...)
	here := op.Less(op.Reshape(row, 1, n.SeqLen, 1, 1), op.Scalar(n.b, graph.U32, float64(block)))
	all := op.Where(here, fresh, old)
	n.b.Assign(old, all)
	return all
}
