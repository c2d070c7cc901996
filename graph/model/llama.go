package model

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// This file is the Llama family: its units, its parameters and its computation.

// The scopes of the first and the last unit.
const (
	EmbedScope = "embed"
	HeadScope  = "head"
)

// LayerScope is the scope of layer i.
func LayerScope(i int) string { return fmt.Sprintf("layers.%d", i) }

// attentionUnit and feedForwardUnit name the units of layer i, as Hugging Face names their modules.
func attentionUnit(i int) string   { return LayerScope(i) + ".self_attn" }
func feedForwardUnit(i int) string { return LayerScope(i) + ".mlp" }

// Units counts the embedding, the attention and the feed-forward layer of each layer, and the head with the loss.
func (c Config) Units() int { return 2*c.NLayers + 2 }

// branch is the layer and the branch of a unit that is neither the embedding nor the head.
func branch(unit int) (layer int, feedForward bool) { return (unit - 1) / 2, unit%2 == 0 }

// UnitScope is the scope of a unit, counted from 0. The units of a layer share a scope: where the layer is not cut,
// kernels may span them.
func (c Config) UnitScope(unit int) string {
	switch unit {
	case 0:
		return EmbedScope
	case c.Units() - 1:
		return HeadScope
	}
	layer, _ := branch(unit)
	return LayerScope(layer)
}

// UnitName is the name of a unit.
func (c Config) UnitName(unit int) string {
	if unit == 0 || unit == c.Units()-1 {
		return c.UnitScope(unit)
	}
	layer, feedForward := branch(unit)
	if feedForward {
		return feedForwardUnit(layer)
	}
	return attentionUnit(layer)
}

// Like is the first attention or feed-forward layer that computes the same as one, and the unit itself for the
// embedding and the head.
func (c Config) Like(unit int) int {
	if unit == 0 || unit == c.Units()-1 {
		return unit
	}
	layer, feedForward := branch(unit)
	for first := range layer {
		if c.Layer(first).like(c.Layer(layer), feedForward) {
			return unit - 2*(layer-first)
		}
	}
	return unit
}

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
func (c Config) LossParameters() (ps []graph.Named) {
	if c.Norm.Weight {
		ps = append(ps, graph.Named{ID: normName, Type: graph.T(graph.F32, c.DModel)})
	}
	return append(ps, graph.Named{ID: headName, Type: graph.T(graph.F32, c.VocabSize, c.DModel)})
}

// Redundant reports whether a tensor is the frequencies of the rotary embedding or the head of a tied model.
func (c Config) Redundant(tensor string) bool {
	return strings.HasSuffix(tensor, "rotary_emb.inv_freq") || c.TieEmbeddings && tensor == headName
}

// net holds a model's parameters as values of one graph.
type net struct {
	Config
	precision
	b      *graph.Builder
	params map[string]*graph.Value
	// Tables of rotary positions. Where only some layers have scaled frequencies, the other layers use unscaled.
	rope, unscaled ropeTables
	last           *graph.Value // LossInputs.Hidden, once the head is built
	routed         []routing    // of the layers that were built so far
	real           *graph.Value // u32 [B, T], see RealInput; nil: there is no padding
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
	n.rope = n.tables("rope", c.Rope.Scaling.table())
	if c.Rope.Scaling.Layers == FullLayers {
		n.unscaled = n.tables("rope_unscaled", op.RoPEScaling{})
	}
	return n
}

// ropeTables are the cosines and sines [seq_len, head_dim/2] of rotary positions.
type ropeTables struct{ cos, sin *graph.Value }

func (n *net) tables(name string, scaling op.RoPEScaling) ropeTables {
	cos, sin := op.RoPETables(n.Rope.Theta, n.SeqLen, n.HeadDim(), scaling)
	t := graph.T(graph.F32, n.SeqLen, n.HeadDim()/2)
	return ropeTables{n.b.Constant(name+"/cos", t, cos), n.b.Constant(name+"/sin", t, sin)}
}

// table is the scaling as RoPETables takes it.
func (s Scaling) table() op.RoPEScaling {
	t := op.RoPEScaling{Factor: s.Factor, Low: s.Low, High: s.High, Original: float64(s.Original)}
	if s.Kind == LinearScaling {
		t.Low, t.High = 1, 2 // all frequencies are low: they make no turn in no context
	}
	if s.Kind == YaRNScaling {
		if t.YaRN, t.Attention = true, s.Attention; s.Attention == 0 {
			t.Attention = s.defaultAttention()
		}
	}
	return t
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
			n.last = n.round(n.hidden(x))
			y = n.logits(n.last)
		})
		return y
	}
	layer, feedForward := branch(u)
	if !feedForward {
		return n.attentionOf(layer, x, read(SegmentsInput))
	}
	if n.Layer(layer).MoE {
		n.real = read(RealInput)
	}
	return n.feedForwardBranch(layer, x)
}

func (n *net) head() (*graph.Value, map[string]*graph.Value) {
	ps := map[string]*graph.Value{}
	for _, p := range n.LossParameters() {
		ps[p.ID] = n.parameter(p.ID)
	}
	return n.last, ps
}

// embed looks up tokens [B, T]: [B, T, d_model].
func (n *net) embed(tokens *graph.Value) (x *graph.Value) {
	n.b.Scope(EmbedScope, func() {
		if x = n.untrained(tokens, op.Embedding(n.parameter(embedName), tokens)); n.Norm.Embedding {
			x = n.rms("", x)
		}
	})
	return x
}

// untrained stops the gradients of the embeddings x [B, T, d_model] of untrained tokens.
func (n *net) untrained(tokens, x *graph.Value) *graph.Value {
	for _, id := range n.Untrained {
		s := tokens.Shape
		is := op.Equal(tokens, op.Full(n.b, graph.U32, float64(id), s...))
		x = op.Where(op.Broadcast(op.Reshape(is, s[0], s[1], 1), x.Shape...), op.StopGradient(x), x)
	}
	return x
}

// hidden is the last norm: [..., d_model]. Call it in HeadScope.
func (n *net) hidden(x *graph.Value) *graph.Value {
	return n.rms(normName, x)
}

// logits multiplies the result of the last norm by the head's matrix: [..., vocab_size]. Call it in HeadScope.
func (n *net) logits(hidden *graph.Value) *graph.Value {
	name := headName
	if n.TieEmbeddings {
		name = embedName
	}
	y := n.product(hidden, n.parameter(name))
	if most := n.Logits.Softcap; most > 0 {
		y = op.Softcap(y, most)
	}
	return y
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
// Tokens whose target is NoTarget add 0 to the sum and count in the mean. With segments it has the input "segments".
func (c Config) Eval(batch int, segments bool) (*graph.Graph, error) {
	return evaluation(c, batch, segments)
}

// TopK is the graph that predicts the token after each token of batch sequences. It outputs the ids of the k likeliest
// tokens, the likeliest first and the lower id first among equals, and the natural logarithms of their probabilities.
// If logits are NaN, ids may be VocabSize or above. With segments it has the input "segments".
func (c Config) TopK(batch, k int, segments bool) (*graph.Graph, error) {
	return likeliest(c, batch, k, segments)
}
