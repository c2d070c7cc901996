package model

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
)

// The names of the graphs' inputs and outputs.
const (
	TokensInput   = "tokens"   // u32 [B, T]; of Decode u32 [1, 1]
	TargetsInput  = "targets"  // u32 [B, T]
	PositionInput = "position" // u32 [1], of Decode

	LossOutput   = "loss"   // f32 [1]
	LossesOutput = "losses" // f32 [B]
	LogitsOutput = "logits" // f32 [V]

	// LossVariable holds the mean loss of a batch's microbatches so far, each divided by their number: f32 [1].
	LossVariable = "loss"
)

// Loss adds the mean negative log-likelihood, in nats per token, of targets u32 [B, T] given tokens u32 [B, T]: f32 [].
func (c Config) Loss(b *graph.Builder, tokens, targets *graph.Value) (loss *graph.Value) {
	perToken := c.net(b).losses(tokens, targets)
	b.Scope(HeadScope, func() { loss = op.Mean(perToken, nil, false) })
	return loss
}

func (c Config) inputs(b *graph.Builder, batch int) (tokens, targets *graph.Value) {
	t := graph.T(graph.U32, batch, c.SeqLen)
	return b.Input(TokensInput, t), b.Input(TargetsInput, t)
}

// Grad is the graph of one microbatch of a batch of `microbatches`, each of batch sequences: it outputs "loss", the
// microbatch's mean f32 [1], and stores its share of the whole batch's mean loss in the variable "loss", and of that loss's
// gradient in the variables "grad/NAME"; or adds it to them when accumulate is set.
func (c Config) Grad(batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return graph.Build(func(b *graph.Builder) {
		tokens, targets := c.inputs(b, batch)
		loss := c.Loss(b, tokens, targets)
		var share *graph.Value
		b.Scope(HeadScope, func() {
			b.Output(LossOutput, op.Reshape(loss, 1))
			share = op.Scalar(b, graph.F32, 1/float64(microbatches))
			v := b.Variable(LossVariable, graph.T(graph.F32, 1))
			part := op.Reshape(op.Mul(loss, share), 1)
			if accumulate {
				part = op.Add(v, part)
			}
			b.Assign(v, part)
		})
		ps := c.Parameters()
		wrt := make([]*graph.Value, len(ps))
		for i, p := range ps {
			wrt[i] = b.Variable(p.Name, p.Type)
		}
		for i, g := range autodiff.Gradients(loss, share, wrt...) {
			if g == nil {
				panic("model: the loss does not depend on " + ps[i].Name)
			}
			v := b.Variable(Gradient(ps[i].Name), ps[i].Type)
			if accumulate {
				b.Scope(ps[i].Scope+autodiff.Suffix, func() { g = op.Add(v, g) })
			}
			b.Assign(v, g)
		}
	})
}

// Eval is the graph that outputs "losses", the mean negative log-likelihood of each of batch sequences: f32 [batch].
func (c Config) Eval(batch int) (*graph.Graph, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return graph.Build(func(b *graph.Builder) {
		perToken := c.net(b).losses(c.inputs(b, batch))
		b.Scope(HeadScope, func() {
			b.Output(LossesOutput, op.Mean(op.Reshape(perToken, batch, c.SeqLen), []int{1}, false))
		})
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
		b.Scope(HeadScope, func() { b.Output(LogitsOutput, op.Reshape(n.logits(op.Reshape(x, 1, c.DModel)), c.VocabSize)) })
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
