package graphhook

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Dims are the sizes that a model is built for.
type Dims struct{ Batch, SeqLen, Vocab int }

// draft is a model while it is built.
type draft struct {
	Dims
	units  []string
	params []model.Parameter // Unit is "" until a unit uses the parameter
	// entering is the value that each unit reads from the one before; nil if it has read none so far.
	entering []*graph.Value
}

const (
	maxUnits = 4096
	maxName  = 128
	onlyUnit = "model" // the unit of ops before the first named unit
)

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	// reserved are names of variables that training uses.
	reserved = []string{model.TokensInput, model.TargetsInput, model.SegmentsInput, model.VocabularyInput, model.PositionInput,
		model.LossVariable, model.LogitsOutput,
		model.WeightsInput, model.ScalarsInput, "hyper", "applied", "__metadata__"} // safetensors reserves the last
)

// BuildModel returns the model that write builds. Its inputs are "tokens" and "segments", u32 [B, T], and "vocabulary",
// u32 [V], the numbers from 0 to V − 1. write returns the logits, f32 [B, T, V].
func BuildModel(dims Dims, write func(*Builder) (Handle, error)) (*model.Draft, error) {
	var failed error
	d := &draft{Dims: dims}
	g, err := graph.Build(func(gb *graph.Builder) {
		ids := graph.T(graph.U32, dims.Batch, dims.SeqLen)
		b := &Builder{b: gb, draft: d, inputs: map[string]*graph.Value{}, given: []graph.Named{{ID: model.TokensInput, Type: ids},
			{ID: model.SegmentsInput, Type: ids}, {ID: model.VocabularyInput, Type: graph.T(graph.U32, dims.Vocab)}}}
		var h Handle
		if h, failed = write(b); failed != nil {
			return
		}
		var logits *graph.Value
		if logits, failed = b.value(h); failed != nil {
			failed = fmt.Errorf("the logits: %w", failed)
			return
		}
		if failed = d.finish(logits); failed == nil && b.inputs[model.TokensInput] == nil {
			failed = errors.New("the model does not read the input \"tokens\"")
		}
		if failed == nil {
			gb.Output(model.LogitsOutput, logits)
		}
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, err
	}
	written := &model.Draft{Graph: g, Units: d.units, Parameters: d.ordered()}
	return written, written.Learns()
}

// Unit begins the next unit and returns its number, counted from 0.
func (b *Builder) Unit(name string) (int, error) {
	d := b.draft
	switch {
	case d == nil:
		return 0, fmt.Errorf("unit %.64q: only models have units, not losses", name)
	case len(name) > maxName || !plainName.MatchString(name):
		return 0, fmt.Errorf("unit %.64q: expected a name of at most %d letters, digits, '_', '.' and '-'", name, maxName)
	case name == model.LossScope:
		return 0, fmt.Errorf("unit %q: the name is reserved", name)
	case slices.Contains(d.units, name):
		return 0, fmt.Errorf("unit %q: there is already a unit of this name", name)
	case len(d.units) == maxUnits:
		return 0, fmt.Errorf("unit %q: the model has more than %d units", name, maxUnits)
	}
	d.begin(name)
	return len(d.units) - 1, nil
}

func (d *draft) begin(name string) {
	d.units, d.entering = append(d.units, name), append(d.entering, nil)
}

type parameterAttributes struct {
	Init string `json:"init,omitempty"`
	Std  *real  `json:"std,omitempty"`
}

// Parameter returns the handle of a trained f32 tensor. Attributes are a JSON object: "init" is "normal" (the default),
// with the deviation "std" (0.02), or "ones" or "zeros".
func (b *Builder) Parameter(name string, shape []int, attributes []byte) (Handle, error) {
	d := b.draft
	if d == nil {
		return 0, fmt.Errorf("parameter %.64q: only models have parameters, not losses", name)
	}
	fail := func(format string, args ...any) (Handle, error) {
		return 0, fmt.Errorf("parameter %.64q: %w", name, fmt.Errorf(format, args...))
	}
	if b.attributes += len(attributes); b.attributes > maxAttributes {
		return fail("the graph has more than %d bytes of attributes", maxAttributes)
	}
	switch {
	case len(name) > maxName || !plainName.MatchString(name):
		return fail("expected a name of at most %d letters, digits, '_', '.' and '-'", maxName)
	case slices.Contains(reserved, name):
		return fail("the name is reserved")
	case slices.ContainsFunc(d.params, func(p model.Parameter) bool { return p.Name == name }):
		return fail("there is already a parameter of this name")
	}
	p := model.Parameter{Name: name, Type: graph.T(graph.F32, shape...)}
	if err := p.Type.Shape.Check(); err != nil {
		return fail("%w", err)
	}
	var a parameterAttributes
	if err := decode(attributes, &a); err != nil {
		return fail("%w", err)
	}
	switch {
	case a.Init == "normal" || a.Init == "":
		p.Std = model.InitStd
		if a.Std != nil {
			p.Std = float64(*a.Std)
		}
		if !(p.Std > 0) || p.Std > math.MaxFloat32 {
			return fail("std is %v, expected a number above 0", graph.Real(p.Std))
		}
	case a.Init != "ones" && a.Init != "zeros":
		return fail("init is %.64q, expected normal, ones or zeros", a.Init)
	case a.Std != nil:
		return fail("init %s has no std, expected none", a.Init)
	case a.Init == "ones":
		p.Fill = 1
	}
	d.params = append(d.params, p)
	return b.add("parameter", b.b.Variable(name, p.Type))
}

// scope is the unit that an op belongs to.
func (b *Builder) scope() string {
	if b.draft == nil {
		return ""
	}
	if len(b.draft.units) == 0 {
		b.draft.begin(onlyUnit)
	}
	return b.draft.units[len(b.draft.units)-1]
}

// admit checks that an op of the current unit may read a value.
func (d *draft) admit(v *graph.Value) error {
	if d == nil {
		return nil
	}
	now := len(d.units) - 1
	switch o := v.Node.Op.(type) {
	case *graph.Constant:
		return nil
	case *graph.Input:
		if o.ID == model.TokensInput && now > 0 {
			return fmt.Errorf("unit %q reads the tokens, expected only the first unit, %q, to read them", d.units[now], d.units[0])
		}
		return nil
	case *graph.Variable:
		return d.own(o.ID)
	}
	if from := slices.Index(d.units, v.Node.Scope); from < now {
		return d.cross(v, from, now)
	}
	return nil
}

// own assigns a parameter to the current unit.
func (d *draft) own(name string) error {
	p := &d.params[slices.IndexFunc(d.params, func(p model.Parameter) bool { return p.Name == name })]
	unit := d.units[len(d.units)-1]
	if p.Unit == "" {
		p.Unit = unit
	}
	if p.Unit != unit {
		return fmt.Errorf("units %q and %q use parameter %q, expected one unit: units may be on different devices", p.Unit, unit, name)
	}
	return nil
}

// cross passes a value from a unit to a later one.
func (d *draft) cross(v *graph.Value, from, to int) error {
	old, s := d.entering[to], v.Shape
	switch {
	case from < to-1:
		return fmt.Errorf("unit %q reads %v of unit %q, expected a value of the unit before it, %q", d.units[to], v.Type, d.units[from],
			d.units[to-1])
	case old == v:
		return nil
	case old != nil:
		return fmt.Errorf("unit %q reads two values of unit %q, %v of op %s and %v of op %s, expected one",
			d.units[to], d.units[from], old.Type, old.Node.Op.Name(), v.Type, v.Node.Op.Name())
	case v.DType != graph.F32 || len(s) != 3 || s[0] != d.Batch || s[1] != d.SeqLen:
		return fmt.Errorf("found %v between unit %q and unit %q, expected f32[%d,%d,d]", v.Type, d.units[from], d.units[to], d.Batch,
			d.SeqLen)
	case to > 1 && d.entering[1] != nil && d.entering[1].Shape[2] != s[2]:
		return fmt.Errorf("found %v between unit %q and unit %q, and %v between unit %q and unit %q, expected one width", v.Type,
			d.units[from], d.units[to], d.entering[1].Type, d.units[0], d.units[1])
	}
	d.entering[to] = v
	return nil
}

// finish checks the whole model.
func (d *draft) finish(logits *graph.Value) error {
	want := graph.T(graph.F32, d.Batch, d.SeqLen, d.Vocab)
	if !logits.Type.Equal(want) {
		return fmt.Errorf("found logits of type %v, expected %v", logits.Type, want)
	}
	for i, u := range d.units {
		if i > 0 && d.entering[i] == nil {
			return fmt.Errorf("unit %q reads no value of unit %q, expected one of the unit before it", u, d.units[i-1])
		}
		if !slices.ContainsFunc(d.params, func(p model.Parameter) bool { return p.Unit == u }) {
			return fmt.Errorf("unit %q has no parameters, expected at least one: merge it with another unit", u)
		}
	}
	var unused []string
	for _, p := range d.params {
		if p.Unit == "" {
			unused = append(unused, p.Name)
		}
	}
	switch {
	case len(unused) > 0:
		return fmt.Errorf("found unused parameters: %s", strings.Join(unused, ", "))
	case len(d.units) == 0 || logits.Node.Scope != d.units[len(d.units)-1]:
		return errors.New("found logits of an earlier unit, expected logits of the last unit")
	}
	return nil
}

// ordered returns the parameters in the order of their units.
func (d *draft) ordered() []model.Parameter {
	slices.SortStableFunc(d.params, func(p, q model.Parameter) int {
		return slices.Index(d.units, p.Unit) - slices.Index(d.units, q.Unit)
	})
	return d.params
}

// maxTables bounds the elements of all tables of rotary positions.
const maxTables = 1 << 24

// rope rotates x [B, T, H, D] by the positions along T.
func (b *Builder) rope(x *graph.Value, theta float64) (*graph.Value, error) {
	if len(x.Shape) != 4 || x.Shape[3]%2 != 0 {
		return nil, fmt.Errorf("found %v, expected [batch, sequence, heads, an even head dimension]", x.Type)
	}
	if !(theta > 0) || theta > 1e12 {
		return nil, fmt.Errorf("theta is %v, expected a number above 0 and at most 1e12", graph.Real(theta))
	}
	s, d := x.Shape[1], x.Shape[3]
	name := fmt.Sprintf("hook/rope/%x/%d/%d/", theta, s, d)
	t, known := b.tables[name]
	if !known {
		if b.rotations += s * d; b.rotations > maxTables {
			return nil, fmt.Errorf("the tables of rotary positions have more than %d elements", maxTables)
		}
		cos, sin := op.RoPETables(theta, s, d, op.RoPEScaling{})
		of := graph.T(graph.F32, s, d/2)
		t = [2]*graph.Value{b.b.Constant(name+"cos", of, cos), b.b.Constant(name+"sin", of, sin)}
		if b.tables == nil {
			b.tables = map[string][2]*graph.Value{}
		}
		b.tables[name] = t
	}
	return op.RoPE(x, t[0], t[1], nil), nil
}

// normed returns a norm with n inputs.
func normed(n int, f func(in []*graph.Value, eps float64) *graph.Value) kind {
	return kind{least: n, most: n, make: func(_ *Builder, in []*graph.Value, attributes []byte) ([]*graph.Value, error) {
		a := struct {
			Eps real `json:"eps,omitempty"`
		}{1e-5}
		if err := decode(attributes, &a); err != nil {
			return nil, err
		}
		return []*graph.Value{f(in, float64(a.Eps))}, nil
	}}
}

var ropeKind = kind{least: 1, most: 1, make: func(b *Builder, in []*graph.Value, attributes []byte) ([]*graph.Value, error) {
	a := struct {
		Theta real `json:"theta,omitempty"`
	}{10000}
	if err := decode(attributes, &a); err != nil {
		return nil, err
	}
	y, err := b.rope(in[0], float64(a.Theta))
	return []*graph.Value{y}, err
}}
