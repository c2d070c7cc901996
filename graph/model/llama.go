package model

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// net holds a model's parameters as values of one graph.
type net struct {
	Config
	precision
	b        *graph.Builder
	params   map[string]*graph.Value
	cos, sin *graph.Value
	last     *graph.Value // hidden, when there is a head
}

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

// Like is the first layer, of a layer.
func (c Config) Like(unit int) int {
	if unit == c.Units()-1 {
		return unit
	}
	return min(unit, 1)
}

// network begins the model as if its embedding were not tied: see span.
func (c Config) network(b *graph.Builder, _ int) (network, error) {
	c.TieEmbeddings = false
	return c.net(b), nil
}

func (c Config) net(b *graph.Builder) *net {
	n := &net{Config: c, b: b, params: map[string]*graph.Value{}}
	for _, p := range c.Parameters() {
		n.params[p.Name] = b.Variable(p.Name, p.Type)
	}
	cos, sin := op.RoPETables(c.RopeTheta, c.SeqLen, c.HeadDim())
	table := graph.T(graph.F32, c.SeqLen, c.HeadDim()/2)
	n.cos, n.sin = b.Constant("rope/cos", table, cos), b.Constant("rope/sin", table, sin)
	return n
}

func (n *net) in(d graph.DType) network {
	n.precision = precision(d)
	return n
}

func (n *net) parameters() []Parameter { return n.Parameters() }

func (n *net) parameter(name string) *graph.Value { return n.params[name] }

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
	return n.last, map[string]*graph.Value{normName: n.params[normName], headName: n.params[headName]}
}

// embed looks up tokens [B, T]: [B, T, d_model].
func (n *net) embed(tokens *graph.Value) (x *graph.Value) {
	n.b.Scope(EmbedScope, func() { x = op.Embedding(n.params[embedName], tokens) })
	return x
}

// linear multiplies x [..., in], in the model's precision, by the layer's matrix [out, in].
func (n *net) linear(layer int, name string, x *graph.Value) *graph.Value {
	return n.product(x, n.params[layerName(layer, name)])
}

// norm is the input of a layer's matrices, in the model's precision. It reads the residual stream x as the backward pass will; the stream
// itself is never rounded.
func (n *net) norm(x, weight *graph.Value) *graph.Value {
	return n.operand(op.RMSNorm(n.kept(x), weight, n.NormEps))
}

// layer is one block. attend is given the rotated queries [B,T,H,D], and keys and values [B,T,KV,D].
func (n *net) layer(i int, x, position *graph.Value, attend func(q, k, v *graph.Value) *graph.Value) (y *graph.Value) {
	batch, seq := x.Shape[0], x.Shape[1]
	n.b.Scope(LayerScope(i), func() {
		h := n.norm(x, n.params[layerName(i, "input_layernorm")])
		heads := func(name string, count int) *graph.Value {
			return op.Reshape(n.linear(i, name, h), batch, seq, count, n.HeadDim())
		}
		q := op.RoPE(heads("self_attn.q_proj", n.NHeads), n.cos, n.sin, position)
		k := op.RoPE(heads("self_attn.k_proj", n.NKVHeads), n.cos, n.sin, position)
		v := heads("self_attn.v_proj", n.NKVHeads)
		a := op.Reshape(attend(n.operand(q), n.operand(k), n.operand(v)), batch, seq, n.DModel)
		x = op.Add(x, n.linear(i, "self_attn.o_proj", a))
		h = n.norm(x, n.params[layerName(i, "post_attention_layernorm")])
		gate, up := n.kept(n.linear(i, "mlp.gate_proj", h)), n.kept(n.linear(i, "mlp.up_proj", h))
		y = op.Add(x, n.linear(i, "mlp.down_proj", op.Mul(n.kept(op.SiLU(gate)), up)))
	})
	return y
}

// block is layer i of a whole text, of documents that do not see each other if there are segments [B, T].
func (n *net) block(i int, x, segments *graph.Value) *graph.Value {
	return n.layer(i, x, nil, func(q, k, v *graph.Value) *graph.Value { return n.attention(q, k, v, segments) })
}

// hidden is the last norm: [..., d_model]. Call it in HeadScope.
func (n *net) hidden(x *graph.Value) *graph.Value {
	return op.RMSNorm(n.kept(x), n.params[normName], n.NormEps)
}

// logits is the head, after the last norm: [..., vocab_size]. Call it in HeadScope.
func (n *net) logits(hidden *graph.Value) *graph.Value {
	head := n.params[headName]
	if n.TieEmbeddings {
		head = n.params[embedName]
	}
	return n.product(hidden, head)
}
