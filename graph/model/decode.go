package model

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

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

// Prefill is Decode for a block of tokens u32 [1, block]. The first one is at "position", and the logits predict the
// token after token "last" u32 [1] < block. What the block holds after that token does not matter. The whole block must
// be within SeqLen.
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
				keys, values := n.cached(i, "k", k, position), n.cached(i, "v", v, position)
				return (&op.AttentionOp{Form: op.FromPosition, Window: n.Layer(i).Window}).Apply(q, keys, values, position)
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
	old := n.b.Variable(fmt.Sprintf("cache/%d/%s", layer, kind), graph.T(graph.F32, 1, n.SeqLen, n.NKVHeads, n.HeadDim()))
	all := op.PutRows(old, x, position)
	n.b.Assign(old, all)
	return all
}
