// Package graphhook lets code that lives elsewhere write a graph, op by op: values are numbers, ops have names,
// attributes are JSON. Input is untrusted: every mistake is an error that names the op, and nothing panics.
package graphhook

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
)

// Limits on one graph.
const (
	maxValues     = 1 << 14
	MaxInputs     = 64 // of one op
	MaxScalars    = 64
	maxAttributes = 16 << 20 // bytes, of all ops
)

// Handle stands for a value. The first is 1; an op with several results has consecutive handles.
type Handle uint32

// Builder is a graph being written. After an error it is of no more use.
type Builder struct {
	b          *graph.Builder
	given      []graph.Named           // inputs that there are
	inputs     map[string]*graph.Value // that were asked for
	asked      []string                // their names
	scalars    []string
	values     []*graph.Value
	attributes int // bytes so far
	constants  int

	draft     *draft                     // nil: it is no model that is written
	tables    map[string][2]*graph.Value // cosines and sines
	rotations int                        // numbers in them
}

// Input gives the handle of a named input.
func (b *Builder) Input(name string) (Handle, error) {
	at := slices.IndexFunc(b.given, func(n graph.Named) bool { return n.ID == name })
	if at < 0 {
		names := make([]string, len(b.given))
		for i, n := range b.given {
			names[i] = n.ID
		}
		return 0, fmt.Errorf("there is no input %.64q, expected one of %s", name, strings.Join(names, ", "))
	}
	if b.inputs[name] == nil {
		b.asked = append(b.asked, name)
	}
	return b.add("input", b.input(name, b.given[at].Type))
}

// Scalar gives the handle of an f32 [] that changes from step to step; it is the same for the same name.
func (b *Builder) Scalar(name string) (Handle, error) {
	if b.draft != nil {
		return 0, fmt.Errorf("scalar %.64q: scalars are of losses only", name)
	}
	if !slices.Contains(b.scalars, name) {
		if len(b.scalars) == MaxScalars {
			return 0, fmt.Errorf("scalar %.64q: there are %d already, at most %d allowed", name, MaxScalars, MaxScalars)
		}
		b.scalars = append(b.scalars, name)
	}
	return b.add("scalar", b.input(ScalarInput(name), graph.T(graph.F32)))
}

// ScalarInput is how the input of a Loss is called that a scalar is.
func ScalarInput(name string) string { return "scalar/" + name }

func (b *Builder) input(name string, t graph.Type) *graph.Value {
	v := b.inputs[name]
	if v == nil {
		v = b.b.Input(name, t)
		b.inputs[name] = v
	}
	return v
}

// Type is the type of a value.
func (b *Builder) Type(h Handle) (graph.Type, error) {
	v, err := b.value(h)
	if err != nil {
		return graph.Type{}, err
	}
	return v.Type, nil
}

func (b *Builder) value(h Handle) (*graph.Value, error) {
	if h == 0 || uint64(h) > uint64(len(b.values)) {
		return nil, fmt.Errorf("%d is not a value, expected 1 to %d", h, len(b.values))
	}
	return b.values[h-1], nil
}

func (b *Builder) add(what string, vs ...*graph.Value) (Handle, error) {
	if len(b.values)+len(vs) > maxValues {
		return 0, fmt.Errorf("%s: more than %d values", what, maxValues)
	}
	b.values = append(b.values, vs...)
	return Handle(len(b.values) - len(vs) + 1), nil
}

// Op applies an op and gives the handle of its first result. Attributes are a JSON object, or nothing where the
// defaults will do.
func (b *Builder) Op(name string, inputs []Handle, attributes []byte) (first Handle, err error) {
	k, ok := kinds[name]
	if !ok {
		return 0, fmt.Errorf("there is no op %.64q", name)
	}
	if len(inputs) < k.least || len(inputs) > k.most {
		return 0, fmt.Errorf("%s: got %d inputs, expected %s", name, len(inputs), k.arity())
	}
	if b.attributes += len(attributes); b.attributes > maxAttributes {
		return 0, fmt.Errorf("%s: more than %d bytes of attributes in all", name, maxAttributes)
	}
	in := make([]*graph.Value, len(inputs))
	for i, h := range inputs {
		if in[i], err = b.value(h); err != nil {
			return 0, fmt.Errorf("%s: input %d: %w", name, i, err)
		}
	}
	defer func() {
		if r := recover(); r != nil {
			mistake, ok := r.(*graph.Error)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s%s: %w", name, types(in), inner(name, mistake))
		}
	}()
	var out []*graph.Value
	b.b.Scope(b.scope(), func() {
		for i, v := range in {
			if err = b.draft.admit(v); err != nil {
				err = fmt.Errorf("input %d: %w", i, err)
				return
			}
		}
		out, err = k.make(b, in, attributes)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return b.add(name, out...)
}

// inner omits the op's name if it is the op that was asked for: some ops are built from others.
func inner(name string, e *graph.Error) error {
	if e.Op == name {
		return e.Cause
	}
	return fmt.Errorf("%s: %w", e.Op, e.Cause)
}

func types(in []*graph.Value) string {
	texts := make([]string, len(in))
	for i, v := range in {
		texts[i] = v.Type.String()
	}
	return "(" + strings.Join(texts, ", ") + ")"
}

// The names of a loss's inputs, and of its output.
const (
	Logits  = "logits"
	Targets = "targets"
	Weights = "weights"
	Hidden  = "hidden"
	Output  = "loss"
)

// Inputs are what a loss can be made of: "logits" f32 [Rows, Vocab], "targets" u32 [Rows], "weights" f32 [Rows], and
// more.
type Inputs struct {
	Rows, Vocab int
	Width       int           // of "hidden" f32 [Rows, Width]; 0: there is none
	More        []graph.Named // parameters, aligned arrays
}

func (in Inputs) named() []graph.Named {
	all := []graph.Named{{ID: Logits, Type: graph.T(graph.F32, in.Rows, in.Vocab)}, {ID: Targets, Type: graph.T(graph.U32, in.Rows)},
		{ID: Weights, Type: graph.T(graph.F32, in.Rows)}}
	if in.Width > 0 {
		all = append(all, graph.Named{ID: Hidden, Type: graph.T(graph.F32, in.Rows, in.Width)})
	}
	return append(all, in.More...)
}

// Loss is a loss as a graph: its inputs are what was asked for, its output is "loss".
type Loss struct {
	*graph.Graph
	Asked    []string // inputs
	Scalars  []string // in the order in which they were first asked for; see ScalarInput
	PerToken bool     // a number for each token, not one
}

// BuildLoss has write make a loss, and checks it: f32 [Rows], or one number, with a gradient on the logits or on
// hidden.
func BuildLoss(in Inputs, write func(*Builder) (Handle, error)) (*Loss, error) {
	var failed error
	loss := &Loss{}
	g, err := graph.Build(func(gb *graph.Builder) {
		b := &Builder{b: gb, given: in.named(), inputs: map[string]*graph.Value{}}
		var h Handle
		if h, failed = write(b); failed != nil {
			return
		}
		var v *graph.Value
		if v, failed = b.value(h); failed != nil {
			failed = fmt.Errorf("the loss: %w", failed)
			return
		}
		if failed = checkLoss(v, in.Rows); failed == nil {
			gb.Output(Output, v)
		}
		loss.Asked, loss.Scalars, loss.PerToken = b.asked, b.scalars, v.Shape.Equal(graph.Shape{in.Rows})
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, err
	}
	loss.Graph = g
	return loss, hasGradient(g)
}

func checkLoss(loss *graph.Value, rows int) error {
	if loss.DType != graph.F32 || loss.Shape.Len() != 1 && !loss.Shape.Equal(graph.Shape{rows}) {
		return fmt.Errorf("the loss is %v, expected f32[%d], a number for each token, or one f32", loss.Type, rows)
	}
	return nil
}

// hasGradient refuses a loss that nothing is learned from.
func hasGradient(g *graph.Graph) error {
	found := false
	_, err := graph.Build(func(b *graph.Builder) {
		in := map[string]*graph.Value{}
		var learned []*graph.Value
		for _, v := range g.Sources("input") {
			name := v.Node.Op.(graph.Source).Label()
			in[name] = b.Input(name, v.Type)
			if name == Logits || name == Hidden {
				learned = append(learned, in[name])
			}
		}
		loss := b.Inline(g, in)[Output]
		for _, gradient := range autodiff.Gradients(loss, nil, learned...) {
			found = found || gradient != nil
		}
	})
	if err == nil && !found {
		err = errors.New("the loss depends neither on logits nor on hidden in a way that has a gradient")
	}
	return err
}
