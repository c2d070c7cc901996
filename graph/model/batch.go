package model

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// BatchDecoder is the programs that continue several texts at once. Each text has a slot: a cache of keys and values
// for SeqLen tokens. The programs take a list of tokens u32 [N], each with the slot u32 [N] of its text and its
// position u32 [N] there, and store their keys and values. A token sees the tokens of its slot up to its own position,
// so a new text needs no clearing. A token whose slot is Slots or whose position is SeqLen, or more, stores nothing.
// What is computed for a token depends on its text alone, and not on the other tokens of the list.
type BatchDecoder struct {
	Slots, Block int
	Decode       *graph.Graph // N = Slots; outputs the "logits" f32 [N, V] after each token
	Score        *graph.Graph // N = Block; outputs them, too
	Fill         *graph.Graph // N = Block; has no output
}

// SlotInput is the input of a BatchDecoder with the slots of tokens: u32 [N].
const SlotInput = "slot"

// BatchDecoder returns the programs for a number of texts at once.
func (c Config) BatchDecoder(slots int) (d BatchDecoder, err error) {
	if slots < 1 {
		return d, fmt.Errorf("slots: found %d, expected at least 1", slots)
	}
	d.Slots, d.Block = slots, min(prefillTokens, c.SeqLen)
	for _, p := range []struct {
		to     **graph.Graph
		tokens int
		output bool
	}{{&d.Decode, slots, true}, {&d.Score, d.Block, true}, {&d.Fill, d.Block, false}} {
		if *p.to, err = c.slotted(slots, p.tokens, p.output); err != nil {
			return BatchDecoder{}, err
		}
	}
	return d, nil
}

// slotted is a program of a BatchDecoder for a list of n tokens.
func (c Config) slotted(slots, tokens int, output bool) (*graph.Graph, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	g, err := graph.Build(func(b *graph.Builder) {
		n, list := c.net(b), graph.T(graph.U32, tokens)
		ids, position, slot := b.Input(TokensInput, list), b.Input(PositionInput, list), b.Input(SlotInput, list)
		x := n.embed(op.Reshape(ids, tokens, 1))
		for i := range c.NLayers {
			x = n.layer(i, x, position, func(q, k, v *graph.Value) *graph.Value {
				keys, values := n.slotCache(i, "k", slots, k, position, slot), n.slotCache(i, "v", slots, v, position, slot)
				return (&op.AttentionOp{Form: op.FromCaches, Window: n.Layer(i).Window}).Apply(q, keys, values, position, slot)
			})
		}
		if !output {
			return
		}
		b.Scope(HeadScope, func() {
			b.Output(LogitsOutput, n.logits(n.hidden(op.Reshape(x, tokens, c.DModel))))
		})
	})
	if err != nil {
		return nil, err
	}
	return graph.Expand(g)
}

// slotCache stores x [N, 1, KV, D] in the caches of slots, at positions, and returns the caches [slots, S, KV, D].
func (n *net) slotCache(layer int, kind string, slots int, x, position, slot *graph.Value) *graph.Value {
	old := n.b.Variable(fmt.Sprintf("cache/%d/%s", layer, kind), graph.T(graph.F32, slots, n.SeqLen, n.NKVHeads, n.HeadDim()))
	all := op.PutSlotRows(old, x, position, slot)
	n.b.Assign(old, all)
	return all
}
