package model

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Inputs are the data of a batch, besides tokens and targets, that training reads. EvaluationReads lists what
// evaluation reads.
type Inputs struct {
	Segments     bool // a number of each token: it attends to earlier tokens of the same number only
	EvalSegments bool // evaluation reads segments, too
	Weights      bool // a weight of each token's loss: a microbatch's loss is the mean of weights·losses
	// Real is 1 for each token of a document and 0 for padding, which mixtures of experts do not count.
	Real bool
	// Aligned are tensors with a value for each token that the loss may read. Type is the type of one token's value:
	// f32, i32 or u32.
	Aligned []graph.Named
	Scalars int // how many scalars the loss may read
}

// AlignedInput is the variable of an aligned tensor: [B, T, …].
func AlignedInput(name string) string { return "aligned/" + name }

// Variables are the variables that hold the data of a microbatch of batch sequences, tokens and targets first. A
// program has the variables that it reads.
func (z Size) Variables(in Inputs, batch int) []graph.Named {
	ids := z.perToken(batch, graph.T(graph.U32))
	vs := []graph.Named{{ID: TokensInput, Type: ids}, {ID: TargetsInput, Type: ids}}
	if in.Segments {
		vs = append(vs, graph.Named{ID: SegmentsInput, Type: ids})
	}
	if in.Weights {
		vs = append(vs, graph.Named{ID: WeightsInput, Type: z.perToken(batch, graph.T(graph.F32))})
	}
	if in.Real {
		vs = append(vs, graph.Named{ID: RealInput, Type: ids})
	}
	for _, a := range in.Aligned {
		vs = append(vs, graph.Named{ID: AlignedInput(a.ID), Type: z.perToken(batch, a.Type)})
	}
	if in.Scalars > 0 {
		vs = append(vs, graph.Named{ID: ScalarsInput, Type: graph.T(graph.F32, in.Scalars)})
	}
	return vs
}

// EvaluationReads reports whether evaluation reads a variable that Variables lists.
func (in Inputs) EvaluationReads(name string) bool {
	switch name {
	case TokensInput, TargetsInput:
		return true
	case SegmentsInput:
		return in.EvalSegments
	}
	return false
}

// perToken is the type of a tensor [B, T, …] that has a value of type t for each token.
func (z Size) perToken(batch int, t graph.Type) graph.Type {
	return graph.Type{DType: t.DType, Shape: append(graph.Shape{batch, z.SeqLen}, t.Shape...)}
}

func (in Inputs) check() error {
	if in.Scalars < 0 {
		return fmt.Errorf("scalars: found %d, expected at least 0", in.Scalars)
	}
	for i, a := range in.Aligned {
		switch {
		case a.ID == "":
			return fmt.Errorf("aligned tensor %d has no name", i)
		case slices.ContainsFunc(in.Aligned[:i], func(b graph.Named) bool { return b.ID == a.ID }):
			return fmt.Errorf("aligned tensor %q is declared twice", a.ID)
		case a.Type.DType != graph.F32 && a.Type.DType != graph.I32 && a.Type.DType != graph.U32:
			return fmt.Errorf("aligned tensor %q is %v, expected f32, i32 or u32", a.ID, a.Type)
		}
	}
	return nil
}
