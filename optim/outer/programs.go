package outer

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// The names of inputs and outputs. Matrices are f32 [n, BlockSize]. The tensors of messages have the names of
// Config.Message.
const (
	WeightsName          = "weights"  // of a replica
	BaseName             = "base"     // B, or B'
	ResidueName          = "residue"  // R_i
	EstimateName         = "estimate" // of B', see Correction
	SentName             = "sent"     // s_i
	SumName              = "sum"      // of messages
	OuterName            = "outer"    // Ω
	MomentumName         = "momentum" // M
	KeyInput             = "key"      // u32 [2], see Config.Key
	HyperparametersInput = "hyper"    // f32 [4], see Config.Hyperparameters
	ShareInput           = "share"    // f32 [1], see Config.Share
	KeptInput            = "kept"     // f32 [1], see Config.Kept
)

// matrix declares an input of n blocks.
func matrix(b *graph.Builder, name string, n int) *graph.Value {
	return b.Input(name, graph.T(graph.F32, n, BlockSize))
}

func output(b *graph.Builder, message map[string]*graph.Value, names []graph.Named) {
	for _, t := range names {
		b.Output(t.ID, message[t.ID])
	}
}

// Send is the program with which a replica sends n blocks: base, weights and residue → message and residue. Without
// rounding there is no residue. With Estimates it has the output EstimateName.
func (c Config) Send(n int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		base := matrix(b, BaseName, n)
		x := op.Sub(base, matrix(b, WeightsName, n))
		if !c.Exact() {
			x = op.Add(x, matrix(b, ResidueName, n))
		}
		message, sent := c.format().write(b, x)
		output(b, message, c.Message(n))
		if !c.Exact() {
			b.Output(ResidueName, op.Sub(x, sent))
		}
		if c.Estimates() {
			b.Output(EstimateName, op.Sub(base, op.Mul(sent, b.Input(ShareInput, graph.T(graph.F32, 1)))))
		}
	})
}

// Add is the program that adds a message of n blocks to the sum of those before: sum and message → sum.
func (c Config) Add(n int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		b.Output(SumName, op.Add(matrix(b, SumName, n), c.read(b, n)))
	})
}

// Step is the program of the outer optimizer for n blocks: sum, outer, momentum and base → outer, momentum and the
// message of the change of the base.
func (c Config) Step(n int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		hyper := b.Input(HyperparametersInput, graph.T(graph.F32, 4))
		h := func(i int) *graph.Value { return op.Slice(hyper, 0, i, i+1) }
		lr, momentum, ahead, replicas := h(0), h(1), h(2), h(3)
		outer := matrix(b, OuterName, n)
		gradient := op.Div(matrix(b, SumName, n), replicas)
		m := op.Add(op.Mul(matrix(b, MomentumName, n), momentum), gradient)
		step := op.Neg(op.Mul(op.Add(gradient, op.Mul(m, momentum)), lr))
		next := op.Add(outer, step)
		target := op.Add(next, op.Mul(step, ahead))
		if !c.Exact() {
			target = op.Sub(target, matrix(b, BaseName, n))
		}
		message, _ := c.format().write(b, target)
		output(b, message, c.Message(n))
		b.Output(OuterName, next)
		b.Output(MomentumName, m)
	})
}

// Apply is the program that applies the change in a message of n blocks: base and message → base. Without rounding
// there is none: the message is the new base.
func (c Config) Apply(n int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		b.Output(BaseName, op.Add(matrix(b, BaseName, n), c.read(b, n)))
	})
}

// Land is the program with which an exchange of n blocks moves a replica: base, weights, sent and kept → weights.
func (c Config) Land(n int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		own := op.Sub(matrix(b, WeightsName, n), matrix(b, SentName, n))
		b.Output(WeightsName, op.Add(matrix(b, BaseName, n), op.Mul(own, b.Input(KeptInput, graph.T(graph.F32, 1)))))
	})
}
