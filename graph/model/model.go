package model

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/unitname"
)

// Model is a language model as training and inference use it: a chain of units. Each passes f32 [B, T, d_model] to the
// next. The first unit reads the tokens, the last produces the logits. Config, *Written and the models that InPrecision
// returns implement it; other packages cannot.
type Model interface {
	Size() Size
	// Units is the number of pieces that the model can be cut into, counted from 0. UnitName is the name of a unit,
	// UnitScope the scope of its nodes: units with the same scope follow one another and are the parts of a layer.
	Units() int
	UnitName(unit int) string
	UnitScope(unit int) string
	// Like is the first unit with the same programs as this unit, except for names.
	Like(unit int) int
	// Parameters lists the trained tensors in the order of their units. Reads lists the tensors that units [first,
	// last) use.
	Parameters() []Parameter
	Reads(first, last int) []Parameter
	// Routing lists the layers within units [first, last) that are mixtures of experts.
	Routing(first, last int) []int
	// Experts counts the experts of each; 0: there are none.
	Experts() int
	// SideLosses reports whether mixtures of experts have losses of their own, whose gradients a backward pass adds.
	SideLosses() bool
	// Tied reports whether the last unit reads a parameter of the first.
	Tied() bool
	// Gradients names the variables whose sum, in order, is a parameter's gradient.
	Gradients(parameter string) []string
	// Count is the number of trained elements. ActiveCount is the number of elements that a token is multiplied by: it
	// leaves out the experts that the token does not choose.
	Count() int64
	ActiveCount() int64
	// Redundant reports whether a file of the model may hold a tensor that is no parameter, since its values follow
	// from the others.
	Redundant(tensor string) bool
	// Namings lists how files may name and cut the parameters. The first is the naming in checkpoints.
	Namings() []Naming
	// Variables are the variables that hold the data of a microbatch. LossParameters lists LossInputs.Parameters.
	Variables(in Inputs, batch int) []graph.Named
	LossParameters() []graph.Named

	// Stage builds the training programs of a model chunk, Eval and TopK the inference programs of whole sequences,
	// Decoder the program that generates text.
	Stage(o StageOptions) (*Stage, error)
	Eval(batch int, segments bool) (*graph.Graph, error)
	TopK(batch, k int, segments bool) (*graph.Graph, error)
	Decoder() (Decoder, error)

	// WithSeqLen returns the model for sequences of another length. The error is a *FieldError if the model has no
	// other length.
	WithSeqLen(seqLen int) (Model, error)
	// HuggingFace is config.json as Hugging Face Transformers reads it; nil if Transformers has no such model.
	HuggingFace() []byte

	// Validate refuses sizes with which no graph can be built.
	Validate() error
	// network declares the model's parameters in a graph, for microbatches of batch sequences. If the last unit reads a
	// parameter of the first, the network has a parameter of its own for it: see span.
	network(b *graph.Builder, batch int) (network, error)
}

// Size is the lengths that every model has.
type Size struct {
	VocabSize int
	SeqLen    int // tokens of a sequence
	DModel    int // width of the values between units; 0: there is one unit
	Hidden    int // width of LossInputs.Hidden; 0: unknown
}

// Decoder is the program that predicts the token after a text. It outputs "logits" f32 [V].
type Decoder struct {
	Graph *graph.Graph
	// Cached decoders take one token u32 [1, 1] and its "position" u32 [1] a run, from position 0 upwards, and keep the
	// keys and values of earlier tokens in variables. Other decoders take the whole text u32 [1, T], and the position
	// of its last token.
	Cached bool
	// Prefill takes Block tokens u32 [1, Block] at once for a cached decoder, the first one at "position" and all
	// within the model's SeqLen. Its logits predict the token after token "last" u32 [1] < Block. It may be nil.
	Prefill *graph.Graph
	Block   int
}

// prefillTokens is the most tokens that Decoder.Prefill takes. Products read the weights once for all of them.
const prefillTokens = 32

// network is a model as values of one graph.
type network interface {
	// parameters are the model's and, if the last unit reads a parameter of the first, its own.
	parameters() []Parameter
	parameter(name string) *graph.Value
	// unit adds a unit in its scope and returns its result, for the last unit the logits [B, T, V]. x is the result of
	// the unit before, nil for the first. read returns the tokens and the segments [B, T]; segments may be nil.
	unit(u int, x *graph.Value, read func(name string) *graph.Value) *graph.Value
	// head is what a loss may read of the last unit besides its logits: see LossInputs.
	head() (hidden *graph.Value, parameters map[string]*graph.Value)
	// routing is what the routers of the units that were added so far have decided, in order.
	routing() []routing
	// in is the network with operands of a dtype: see InPrecision.
	in(d graph.DType) network
}

// within lists the parameters that belong to units [first, last).
func within(ps []Parameter, m Model, first, last int) []Parameter {
	units := map[string]bool{}
	for u := first; u < last; u++ {
		units[m.UnitName(u)] = true
	}
	return slices.DeleteFunc(ps, func(p Parameter) bool { return !units[p.Unit] })
}

// UnitOf is the unit that a parameter belongs to.
func UnitOf(m Model, p Parameter) int {
	unit := 0
	for m.UnitName(unit) != p.Unit {
		unit++
	}
	return unit
}

// UnitNames are the names of a model's units and of their layers.
func UnitNames(m Model) []unitname.Unit {
	us := make([]unitname.Unit, m.Units())
	for u := range us {
		us[u] = unitname.Unit{Name: m.UnitName(u), Layer: m.UnitScope(u)}
	}
	return us
}

func count(ps []Parameter) (n int64) {
	for _, p := range ps {
		n += int64(p.Type.Shape.Len())
	}
	return n
}
