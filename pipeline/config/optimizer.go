package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/optim"
	"go.yaml.in/yaml/v3"
)

// Optimizer chooses the optimizer. Its keys are the fields of the tables of package optim.
type Optimizer struct {
	Algorithm   optim.Algorithm // the optimizer that the key name names
	AdamW       optim.AdamW     // the section adamw: of the parameters that Algorithm does not take
	WeightDecay float64
	Router      string             // who updates the matrices that score experts: RouterSame or RouterAdamW
	Moments     string             // dtype in which the state of optimizer and correction is stored: f32 or bf16
	Corrections []optim.Correction // of every row of the table, as keys belong to them before pipeline.correction is known
}

// Keys of the section that are not fields.
const (
	nameKey      = "name"
	routerKey    = "router"
	momentsKey   = "moments"
	adamWSection = "adamw"

	optimizerSection = "optimizer"
)

// The values of optimizer.router. The name of the optimizer is read as RouterSame.
const (
	RouterSame  = "same"  // as other matrices of the layers
	RouterAdamW = "adamw" // AdamW with the settings of the parameters that the optimizer does not take
)

func defaultOptimizer() Optimizer {
	o := Optimizer{Algorithm: optim.Optimizers()[0].New(), AdamW: *optim.DefaultRest(), WeightDecay: optim.DefaultWeightDecay,
		Router: RouterSame, Moments: graph.F32.String()}
	for _, c := range optim.Corrections() {
		o.Corrections = append(o.Corrections, c.New())
	}
	return o
}

// Name is the optimizer's name in the table of package optim.
func (o Optimizer) Name() string { return optim.Name(o.Algorithm) }

// Correction returns the correction of a name, with the hyperparameters that the config gives.
func (o Optimizer) Correction(name string) optim.Correction {
	return o.Corrections[slices.Index(optim.CorrectionNames(), name)]
}

// Field is a key of the optimizer's section with the hyperparameter that it holds.
type Field struct {
	Key string // without "optimizer.", such as "soap.shampoo_beta"
	optim.Field
}

// sectioned reports whether a field is in a section with its optimizer's name. Other fields are keys of the section
// optimizer.
func sectioned(optimizer, field string) bool {
	switch optimizer {
	case "adamw":
		return field != "lr"
	case "soap":
		return slices.Contains([]string{"shampoo_beta", "precondition_frequency", "max_precond_dim"}, field)
	}
	return false
}

// fieldsOf returns the fields of an optimizer with their keys.
func fieldsOf(a optim.Algorithm) (fs []Field) {
	name := optim.Name(a)
	for _, f := range a.Fields() {
		key := f.Name
		if sectioned(name, key) {
			key = name + "." + key
		}
		fs = append(fs, Field{key, f})
	}
	return fs
}

// Fields lists the keys that the chosen optimizer reads, name aside, in the order in which YAML has them.
func (o *Optimizer) Fields() []Field {
	fs := fieldsOf(o.Algorithm)
	fs = append(fs, Field{"weight_decay", optim.WeightDecay(&o.WeightDecay)}, momentsField(&o.Moments))
	if !optim.TakesAll(o.Algorithm) {
		fs = append(fs, routerField(&o.Router))
	}
	for _, c := range o.Corrections {
		for _, f := range c.Fields() {
			fs = append(fs, Field{f.Name, f})
		}
	}
	if optim.ReadsAdamW(o.Algorithm) {
		fs = append(fs, restFields(&o.AdamW)...)
	}
	return fs
}

// routerField is the key router of an optimizer that does not take all parameters.
func routerField(router *string) Field {
	return Field{routerKey, optim.Field{Name: routerKey,
		About: "optimizer of the matrices that score experts: same as for other matrices, or adamw",
		Value: router, Choices: []string{RouterSame, RouterAdamW}, Shapes: true}}
}

// momentsField is the key moments.
func momentsField(dtype *string) Field {
	var names []string
	for _, d := range optim.MomentTypes() {
		names = append(names, d.String())
	}
	return Field{momentsKey, optim.Field{Name: momentsKey,
		About: "dtype of the stored moments and of the correction's buffer; bf16 is rounded stochastically",
		Value: dtype, Choices: names, Shapes: true}}
}

// MomentType is the dtype of the key moments.
func (o Optimizer) MomentType() graph.DType {
	i := slices.IndexFunc(optim.MomentTypes(), func(d graph.DType) bool { return d.String() == o.Moments })
	return optim.MomentTypes()[i]
}

// restFields are the keys of the section adamw.
func restFields(a *optim.AdamW) (fs []Field) {
	for _, f := range a.Fields() {
		fs = append(fs, Field{adamWSection + "." + f.Name, f})
	}
	return fs
}

const restRate = adamWSection + ".lr"

// foreignFields lists the fields of the other optimizers of the table, by key. One key may have several.
func (o *Optimizer) foreignFields() map[string][]optim.Field {
	all := map[string][]optim.Field{}
	for _, f := range restFields(optim.DefaultRest()) {
		all[f.Key] = append(all[f.Key], f.Field)
	}
	for _, k := range optim.Optimizers() {
		a := k.New()
		fs := fieldsOf(a)
		if !optim.TakesAll(a) {
			fs = append(fs, routerField(new(string)))
		}
		for _, f := range fs {
			all[f.Key] = append(all[f.Key], f.Field)
		}
	}
	return all
}

// DecodeYAML reads the section. Keys of other optimizers than the chosen one are checked and have no effect, so that a
// config can be tried with another optimizer by changing the name alone.
func (o *Optimizer) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	values, err := leaves(d, n, key)
	if err != nil {
		return err
	}
	*o = defaultOptimizer()
	if i := slices.IndexFunc(values, func(e strictyaml.Entry) bool { return e.Key == nameKey }); i >= 0 {
		name := o.Name()
		if err := d.DecodeNode(values[i].Value, &name, key+"."+nameKey); err != nil {
			return err
		}
		if o.Algorithm, err = optim.NewAlgorithm(name); err != nil {
			return at(values[i], key, err)
		}
		values = slices.Delete(values, i, i+1)
	}
	given := map[string]bool{}
	own, foreign := o.Fields(), o.foreignFields()
	if _, ok := o.Algorithm.(*optim.AdamW); ok {
		own = append(own, slices.DeleteFunc(restFields(&o.AdamW), func(f Field) bool { return f.Key != restRate })...)
	}
	for _, e := range values {
		i := slices.IndexFunc(own, func(f Field) bool { return f.Key == e.Key })
		switch {
		case e.Key == routerKey && e.Value.Value == o.Name(): // the optimizer by its name
			o.Router = RouterSame
		case i >= 0:
			given[e.Key] = given[e.Key] || !empty(e.Value)
			err = decode(d, e, own[i].Field, key)
		case foreign[e.Key] != nil:
			err = o.decodeForeign(d, e, foreign[e.Key], key)
		case hasKeys(e.Key) && (empty(e.Value) || e.Value.Kind == yaml.MappingNode): // without a key
		default:
			err = fmt.Errorf("%s: %s.%s: %s", e.Where, key, e.Key, strictyaml.UnknownKey(e.Key, optimizerKeyNames()))
		}
		if err != nil {
			return err
		}
	}
	o.complete(given)
	return nil
}

// complete fills in the keys whose defaults depend on other keys.
func (o *Optimizer) complete(given map[string]bool) {
	if a, ok := o.Algorithm.(*optim.AdamW); ok {
		if !given["lr"] && given[restRate] {
			a.LR = o.AdamW.LR
		}
		o.AdamW = *a
	}
	if a, ok := o.Algorithm.(optim.Dependent); ok {
		a.Complete(func(field string) bool {
			return slices.ContainsFunc(fieldsOf(o.Algorithm), func(f Field) bool { return f.Name == field && given[f.Key] })
		})
	}
}

// leaves lists the entries of the section and of its sections, by dotted key.
func leaves(d *strictyaml.Document, n *yaml.Node, key string) (all []strictyaml.Entry, err error) {
	entries, err := d.Entries(n, key)
	for _, e := range entries {
		if strings.Contains(e.Key, ".") { // a key with a dot in it is none of a section's
			e.Key = fmt.Sprintf("%q", e.Key)
		}
		if e.Value.Kind != yaml.MappingNode || len(e.Value.Content) == 0 {
			all = append(all, e)
			continue
		}
		below, err := leaves(d, e.Value, key+"."+e.Key)
		if err != nil {
			return nil, err
		}
		for _, b := range below {
			b.Key = e.Key + "." + b.Key
			all = append(all, b)
		}
	}
	return all, err
}

// empty reports whether a value leaves the default: there is none, or a list without elements.
func empty(n *yaml.Node) bool {
	return n.ShortTag() == "!!null" || n.Kind == yaml.SequenceNode && len(n.Content) == 0
}

func decode(d *strictyaml.Document, e strictyaml.Entry, f optim.Field, section string) error {
	if empty(e.Value) {
		return nil
	}
	if err := d.DecodeNode(e.Value, f.Value, section+"."+e.Key); err != nil {
		return err
	}
	return at(e, section, f.Check())
}

// at adds the place and the full key to the error of an entry's value.
func at(e strictyaml.Entry, section string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", e.Where, fielderror.Rename(err, func(string) string { return section + "." + e.Key }))
}

// decodeForeign checks a value of other optimizers: it fits one of them. Lists outside of sections must be empty: betas
// given to an optimizer without them are meant for AdamW.
func (o *Optimizer) decodeForeign(d *strictyaml.Document, e strictyaml.Entry, fields []optim.Field, section string) (err error) {
	if e.Value.Kind == yaml.SequenceNode && len(e.Value.Content) > 0 && !strings.Contains(e.Key, ".") {
		return d.Errorf(e.Value, section+"."+e.Key, "found a list, expected none with %s: AdamW's are %s.%s.%s", o.Name(), section,
			adamWSection, e.Key)
	}
	for _, f := range fields {
		if err = decode(d, e, f, section); err == nil {
			return nil
		}
	}
	return err
}

// entries visits the keys that the chosen optimizer reads.
func (o Optimizer) entries(prefix string, visit func(entry)) {
	visit(entry{prefix + nameKey, "Name of the optimizer.", "", optim.OptimizerNames(), reflect.ValueOf(o.Name())})
	section := ""
	for _, f := range o.Fields() {
		if parent, _, nested := strings.Cut(f.Key, "."); nested && parent != section {
			section = parent
			visit(entry{prefix + section, sectionHelp(section), "", nil, reflect.ValueOf(struct{}{})})
		}
		help := strings.ToUpper(f.About[:1]) + f.About[1:] + "."
		visit(entry{prefix + f.Key, help, "", f.Choices, reflect.ValueOf(f.Value).Elem()})
	}
}

func sectionHelp(section string) string {
	if section == adamWSection {
		return "Settings of adamw, also for the parameters that other optimizers leave to it."
	}
	return "Settings of " + section + "."
}

// optimizerKeys describes the keys of all optimizers. The keys of the section itself come before the keys of its
// subsections.
func optimizerKeys() (keys []Key) {
	users, defaults := map[string][]string{}, map[string][]string{} // by key
	for _, kind := range optim.Optimizers() {
		o := defaultOptimizer()
		o.Algorithm = kind.New()
		walk(reflect.ValueOf(o), optimizerSection+".", func(k Key) {
			i := slices.IndexFunc(keys, func(other Key) bool { return other.Name == k.Name })
			if i < 0 {
				keys = append(keys, k)
			} else if keys[i].goType != k.goType { // lists of two and of three numbers
				keys[i].goType = reflect.TypeFor[[]float64]()
				keys[i].Type = typeName(keys[i].goType)
			}
			users[k.Name], defaults[k.Name] = append(users[k.Name], kind.Name), append(defaults[k.Name], k.Default)
		})
	}
	for i, k := range keys {
		names, texts := users[k.Name], defaults[k.Name]
		if len(names) < len(optim.Optimizers()) && !k.Section() {
			keys[i].Help += " Of " + strings.Join(names, ", ") + "."
		}
		if k.Name == optimizerSection+"."+nameKey || len(slices.Compact(slices.Clone(texts))) < 2 {
			continue
		}
		for j, name := range names {
			texts[j] = name + " " + texts[j]
		}
		keys[i].Default, keys[i].preset = strings.Join(texts, ", "), nil
	}
	slices.SortStableFunc(keys, func(a, b Key) int { return cmp.Compare(sectionOf(a), sectionOf(b)) })
	return keys
}

// sectionOf is the section of the optimizer's section that a key is or belongs to.
func sectionOf(k Key) string {
	name := strings.TrimPrefix(k.Name, optimizerSection+".")
	section, _, nested := strings.Cut(name, ".")
	if nested || k.Section() {
		return section
	}
	return ""
}

// optimizerKeyNames lists the keys of all optimizers, without "optimizer.".
func optimizerKeyNames() (names []string) {
	for _, k := range optimizerKeys() {
		if !k.Section() {
			names = append(names, strings.TrimPrefix(k.Name, optimizerSection+"."))
		}
	}
	return names
}

// hasKeys reports whether some key of an optimizer is in the section.
func hasKeys(section string) bool {
	return slices.ContainsFunc(optimizerKeyNames(), func(k string) bool { return strings.HasPrefix(k, section+".") })
}

// MarshalYAML writes the keys that the chosen optimizer reads.
func (o Optimizer) MarshalYAML() (any, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	put := func(at *yaml.Node, key string, value any) error {
		var n yaml.Node
		if err := n.Encode(value); err != nil {
			return err
		}
		if n.Kind == yaml.SequenceNode {
			n.Style = yaml.FlowStyle
		}
		at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &n)
		return nil
	}
	if err := put(root, nameKey, o.Name()); err != nil {
		return nil, err
	}
	sections := map[string]*yaml.Node{}
	for _, f := range o.Fields() {
		at := root
		section, key, nested := strings.Cut(f.Key, ".")
		if !nested {
			key = section
		} else if at = sections[section]; at == nil {
			at = &yaml.Node{Kind: yaml.MappingNode}
			sections[section] = at
			root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: section}, at)
		}
		if err := put(at, key, f.Value); err != nil {
			return nil, err
		}
	}
	return root, nil
}
