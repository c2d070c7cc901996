package model

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// The names of the graphs' inputs and outputs.
const (
	TokensInput   = "tokens"   // u32 [B, T]; of Decode u32 [1, 1]
	TargetsInput  = "targets"  // u32 [B, T]
	SegmentsInput = "segments" // u32 [B, T], if Inputs has them, like those that follow
	WeightsInput  = "weights"  // f32 [B, T]
	ScalarsInput  = "scalars"  // f32 [n]
	PositionInput = "position" // u32 [1], of Decode

	LossOutput   = "loss"   // f32 [1]
	LossesOutput = "losses" // f32 [B]
	LogitsOutput = "logits" // f32 [V]

	// LossVariable holds the mean loss of a batch's microbatches so far, each divided by their number: f32 [1].
	LossVariable = "loss"
)

// Grad is the graph of one microbatch of a batch of `microbatches`, each of batch sequences: it outputs "loss", the
// microbatch's mean f32 [1], and stores its share of the whole batch's mean loss in the variable "loss", and of that loss's
// gradient in the variables that Gradients names; or adds it to them when accumulate is set.
func (c Config) Grad(batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	return grad(c, batch, microbatches, accumulate)
}

func grad(m architecture, batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	o := StageOptions{Last: m.Units(), Batch: batch, Microbatches: microbatches}
	return training(m, o, func(b *graph.Builder) source { return b.Input }, accumulate)
}

// Eval is the graph that outputs "losses", the mean negative log-likelihood of each of batch sequences: f32 [batch].
func (c Config) Eval(batch int) (*graph.Graph, error) { return evaluation(c, batch) }

func evaluation(m architecture, batch int) (*graph.Graph, error) {
	return newSpan(m, 0, m.Units(), batch).build(func(s *span) {
		s.source = s.b.Input
		s.eval()
	})
}

// Decode is the graph that takes one token u32 [1, 1] at "position" u32 [1] < SeqLen, keeps its keys and values in the
// variables that Caches lists, and outputs the "logits" f32 [V] of the token after it. Positions are fed from 0 upwards;
// what the caches hold beyond the position is never read, so a new text needs no clearing.
func (c Config) Decode() (*graph.Graph, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return graph.Build(func(b *graph.Builder) {
		n := c.net(b)
		position := b.Input(PositionInput, graph.T(graph.U32, 1))
		x := n.embed(b.Input(TokensInput, graph.T(graph.U32, 1, 1)))
		for i := range c.NLayers {
			x = n.layer(i, x, position, func(q, k, v *graph.Value) *graph.Value {
				return op.Attention(q, n.cached(i, "k", k, position), n.cached(i, "v", v, position), position)
			})
		}
		b.Scope(HeadScope, func() {
			b.Output(LogitsOutput, op.Reshape(n.logits(n.hidden(op.Reshape(x, 1, c.DModel))), c.VocabSize))
		})
	})
}

func cacheName(layer int, kind string) string { return fmt.Sprintf("cache/%d/%s", layer, kind) }

func (c Config) cacheType() graph.Type {
	return graph.T(graph.F32, 1, c.SeqLen, c.NKVHeads, c.HeadDim())
}

// cached stores x [1, 1, KV, D] in its row of the cache and returns the whole cache [1, S, KV, D].
func (n *net) cached(layer int, kind string, x, position *graph.Value) *graph.Value {
	t := n.cacheType()
	old := n.b.Variable(cacheName(layer, kind), t)
	here := op.Equal(op.Iota(n.b, graph.U32, 1, t.Shape...), position)
	all := op.Where(here, x, old)
	n.b.Assign(old, all)
	return all
}
