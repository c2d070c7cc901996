// Package graphhook lets WebAssembly modules build a graph, op by op: they pass values as numbers, ops by name and
// attributes as JSON. Input is untrusted: every mistake is an error that names the op, and nothing panics.
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
	MaxInputs     = 64 // inputs of one op
	MaxScalars    = 64
	maxAttributes = 16 << 20 // bytes, of all ops
)

// Handle identifies a value. The first is 1. The results of an op have consecutive handles.
type Handle uint32

// Builder builds a graph. It must not be used after an error.
type Builder struct {
	b          *graph.Builder
	given      []graph.Named           // the available inputs
	inputs     map[string]*graph.Value // the inputs that the module asked for
	asked      []string                // their names, in order
	scalars    []string
	values     []*graph.Value
	attributes int // bytes of attributes so far
	constants  int

	draft     *draft                     // the model; nil while a loss is built
	tables    map[string][2]*graph.Value // cosines and sines of rotary positions
	rotations int                        // elements of the tables
}

// Input returns the handle of a named input.
func (b *Builder) Input(name string) (Handle, error) {
	at := slices.IndexFunc(b.given, func(n graph.Named) bool { return n.ID == name })
	if at < 0 {
		names := make([]string, len(b.given))
		for i, n := range b.given {
			names[i] = n.ID
		}
		return 0, fmt.Errorf("unknown input %.64q, expected one of %s", name, strings.Join(names, ", "))
	}
	if b.inputs[name] == nil {
		b.asked = append(b.asked, name)
	}
	return b.add("input", b.input(name, b.given[at].Type))
}

// Scalar returns the handle of a named f32 [] that changes from step to step. Equal names have equal handles.
func (b *Builder) Scalar(name string) (Handle, error) {
	if b.draft != nil {
		return 0, fmt.Errorf("scalar %.64q: only losses have scalars, not models", name)
	}
	if !slices.Contains(b.scalars, name) {
		if len(b.scalars) == MaxScalars {
			return 0, fmt.Errorf("scalar %.64q: found more than %d scalars", name, MaxScalars)
		}
		b.scalars = append(b.scalars, name)
	}
	return b.add("scalar", b.input(ScalarInput(name), graph.T(graph.F32)))
}

// ScalarInput is the name of the input of a Loss that holds a scalar.
func ScalarInput(name string) string { return "scalar/" + name }

func (b *Builder) input(name string, t graph.Type) *graph.Value {
	v := b.inputs[name]
	if v == nil {
		v = b.b.Input(name, t)
		b.inputs[name] = v
	}
	return v
}

// Type returns the type of a value.
func (b *Builder) Type(h Handle) (graph.Type, error) {
	v, err := b.value(h)
	if err != nil {
		return graph.Type{}, err
	}
	return v.Type, nil
}

func (b *Builder) value(h Handle) (*graph.Value, error) {
	if h == 0 || uint64(h) > uint64(len(b.values)) {
		return nil, fmt.Errorf("there is no value %d, expected 1 to %d", h, len(b.values))
	}
	return b.values[h-1], nil
}

func (b *Builder) add(what string, vs ...*graph.Value) (Handle, error) {
	if len(b.values)+len(vs) > maxValues {
		return 0, fmt.Errorf("%s: the graph has more than %d values", what, maxValues)
	}
	b.values = append(b.values, vs...)
	return Handle(len(b.values) - len(vs) + 1), nil
}

// Op applies an op and returns the handle of its first result. Attributes are a JSON object; if empty, all have their
// defaults.
func (b *Builder) Op(name string, inputs []Handle, attributes []byte) (first Handle, err error) {
	k, ok := kinds[name]
	if !ok {
		return 0, fmt.Errorf("unknown op %.64q", name)
	}
	if len(inputs) < k.least || len(inputs) > k.most {
		return 0, fmt.Errorf("%s: found %d inputs, expected %s", name, len(inputs), k.arity())
	}
	if b.attributes += len(attributes); b.attributes > maxAttributes {
		return 0, fmt.Errorf("%s: the graph has more than %d bytes of attributes", name, maxAttributes)
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

// inner adds the name of the op that failed, unless it is the requested op: some ops consist of others.
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

// The names of the inputs and of the output of a loss.
const (
	Logits  = "logits"
	Targets = "targets"
	Weights = "weights"
	Hidden  = "hidden"
	Output  = "loss"
)

// Inputs are the inputs that a loss may read: "logits" f32 [Rows, Vocab], "targets" u32 [Rows], "weights" f32 [Rows],
// and others.
type Inputs struct {
	Rows, Vocab int
	Width       int           // of "hidden" f32 [Rows, Width]; 0 if the loss cannot read it
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

// Loss is a loss as a graph. Its inputs are the inputs that the module asked for, its output is "loss".
type Loss struct {
	*graph.Graph
	Asked    []string // names of the inputs
	Scalars  []string // names of the scalars, in the order in which the module first asked for them; see ScalarInput
	PerToken bool     // the loss has a number for each token, not one number
}

// BuildLoss returns the loss that write builds. It must be f32 [Rows], or one number, and have a gradient with respect
// to the logits or hidden.
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
		return fmt.Errorf("found a loss of type %v, expected f32[%d], a number for each token, or one f32", loss.Type, rows)
	}
	return nil
}

// hasGradient returns an error if the loss has no gradient with respect to its inputs.
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
		err = errors.New("the loss has a gradient neither with respect to logits nor to hidden")
	}
	return err
}
