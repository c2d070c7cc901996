package model

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Model is what training needs of a model: units in a row, each of which hands the next one f32 [B, T, d_model]. The first reads the
// tokens, the last makes the logits. Config is one, Written another.
type Model interface {
	Size() Size
	// Units is the number of pieces that the model can be cut into, and UnitScope the scope of one, counted from 0.
	Units() int
	UnitScope(unit int) string
	// Like is the first unit that has the same programs as this, but for names.
	Like(unit int) int
	// Parameters lists the trained tensors in the order of their units, and Reads those that units [first, last) use.
	Parameters() []Parameter
	Reads(first, last int) []Parameter
	// Tied tells whether the last unit reads a parameter of the first.
	Tied() bool
	// Gradients names the variables whose sum, in order, is a parameter's gradient.
	Gradients(parameter string) []string
	Count() int64
	// Variables are those of a microbatch, and LossParameters those of the last unit that a loss may read: see LossInputs.
	Variables(in Inputs, batch int) []graph.Named
	LossParameters() []graph.Named
	Stage(o StageOptions) (*Stage, error)
	Eval(batch int) (*graph.Graph, error)
	TopK(batch, k int) (*graph.Graph, error)
}

// Size is the lengths that every model has.
type Size struct {
	VocabSize int
	SeqLen    int // tokens of a sequence
	DModel    int // the width of what goes from unit to unit; 0: there is one unit
	Hidden    int // the width of LossInputs.Hidden; 0: it is not known
}

// architecture is a model that a span can be built of.
type architecture interface {
	Model
	Validate() error
	// network begins the model in a graph, for microbatches of batch sequences. Where the last unit reads a parameter of the first,
	// it is one of its own.
	network(b *graph.Builder, batch int) (network, error)
}

// network is a model as values of one graph.
type network interface {
	// parameters are the model's and, where the last unit reads one of the first, its own.
	parameters() []Parameter
	parameter(name string) *graph.Value
	// unit adds a unit in its scope, given what the one before makes, nil for the first. Of the last it is the logits [B, T, V].
	// read gives the tokens and the segments [B, T]; segments are nil where there are none.
	unit(u int, x *graph.Value, read func(name string) *graph.Value) *graph.Value
	// head is what a loss may read of the last unit besides its logits: see LossInputs.
	head() (hidden *graph.Value, parameters map[string]*graph.Value)
	// in is the network with operands of a dtype: see InPrecision.
	in(d graph.DType) network
}

// within lists those parameters that are of units [first, last).
func within(ps []Parameter, m Model, first, last int) []Parameter {
	units := map[string]bool{}
	for u := first; u < last; u++ {
		units[m.UnitScope(u)] = true
	}
	return slices.DeleteFunc(ps, func(p Parameter) bool { return !units[p.Scope] })
}

func count(ps []Parameter) (n int64) {
	for _, p := range ps {
		n += int64(p.Type.Shape.Len())
	}
	return n
}
