package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"go.yaml.in/yaml/v3"
)

// Key describes a key of the config. The fields of the structs are its source: their types, their yaml and help tags,
// and defaults().
type Key struct {
	Name    string   // with its sections, as in train.steps; hooks[] stands for an element of hooks, data.mix[] for one of data.mix
	Type    string   // as in "integer" or "list of texts"
	Default string   // as YAML, or words where it depends on other keys; "" if there is none
	Values  []string // the only values, if they are listed
	Help    string

	goType reflect.Type
	preset any // the default; nil if there is none or it depends on other keys
}

// Section reports whether the key has keys of its own.
func (k Key) Section() bool { return isSection(k.goType) }

// Keys lists all keys in the order of the file, each section before its keys.
func Keys() []Key {
	c := defaults()
	c.Model.Config = model.Defaults()
	var keys []Key
	walk(reflect.ValueOf(c), "", func(k Key) {
		if !strings.HasPrefix(k.Name, optimizerSection+".") {
			keys = append(keys, k)
		}
		if k.Name == optimizerSection {
			keys = append(keys, optimizerKeys()...)
		}
	})
	return keys
}

// FindKey returns a key by its name or its alias.
func FindKey(name string) (Key, bool) {
	if current, ok := aliases()[name]; ok {
		name = current
	}
	keys := Keys()
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	if i < 0 {
		return Key{}, false
	}
	return keys[i], true
}

// entry is a key with its value.
type entry struct {
	name   string // with its sections
	help   string
	words  string // the default, if it depends on other keys
	values []string
	value  reflect.Value
}

// entries visits the keys of a struct and of its sections, and their values.
func entries(v reflect.Value, prefix string, visit func(entry)) {
	if o, ok := v.Interface().(Optimizer); ok {
		o.entries(prefix, visit)
		return
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			entries(v.Field(i), prefix, visit)
		case name != "":
			visit(entry{prefix + name, f.Tag.Get("help"), f.Tag.Get("default"), values()[prefix+name], v.Field(i)})
			if isSection(f.Type) {
				entries(v.Field(i), prefix+name+".", visit)
			}
		}
	}
}

func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[Settings]()
}

// isSections reports whether a type is a list of sections.
func isSections(t reflect.Type) bool { return t.Kind() == reflect.Slice && isSection(t.Elem()) }

// walk visits the keys of a struct.
func walk(v reflect.Value, prefix string, visit func(Key)) {
	entries(v, prefix, func(e entry) {
		k := Key{Name: e.name, Type: typeName(e.value.Type()), Help: e.help, Values: e.values, goType: e.value.Type()}
		switch {
		case e.words != "":
			k.Default = e.words
		case hasDefault(e.name, e.value):
			k.preset = e.value.Interface()
			k.Default = inYAML(k.preset)
		}
		visit(k)
		if isSections(k.goType) {
			walk(reflect.Zero(k.goType.Elem()), k.Name+"[].", visit)
		}
	})
}

// hasDefault reports whether a value is a default. Sizes of models have none, and empty texts and lists say nothing.
func hasDefault(name string, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		return false
	case reflect.Slice, reflect.String, reflect.Map:
		return !v.IsZero()
	case reflect.Int:
		return !v.IsZero() || !strings.HasPrefix(name, "model.")
	}
	return true
}

// values lists the values of keys that have only these.
func values() map[string][]string {
	all := map[string][]string{
		"model.preset":        model.Presets(),
		"data.pack":           {PackConcat, PackBestFit},
		"data.special_text":   {tokenizer.SpecialAsToken, tokenizer.SpecialAsText},
		"train.precision":     {graph.F32.String(), graph.F16.String(), graph.BF16.String()},
		"train.nonfinite":     {Stop, Skip},
		"lr.schedule":         optim.ScheduleNames(),
		"pipeline.correction": optim.CorrectionNames(),
		"pipeline.outer.wire": outer.FormatNames(), "pipeline.outer.correction": outer.CorrectionNames(),
		"pipeline.recompute":     {RecomputeAuto, RecomputeAlways, RecomputeNever},
		"pipeline.wire":          wire.Names(),
		"pipeline.wire_exchange": exchangeFormats(),
		"pipeline.isolate":       {IsolateNone, IsolateProcess},
		"hooks[].hook":           hook.Names(),
		"hooks[].on_error":       {Stop, Skip},
	}
	for key, names := range model.Values() {
		all["model."+key] = names
	}
	all["model.arch"] = append(all["model.arch"], ArchHook)
	return all
}

// aliases are the keys of earlier versions, which stand for current ones.
func aliases() map[string]string {
	all := map[string]string{}
	for alias, key := range model.Aliases() {
		all["model."+alias] = "model." + key
	}
	return all
}

// useCurrentKeys replaces the aliases in a document by the keys that they stand for.
func useCurrentKeys(d *strictyaml.Document) error {
	all := aliases()
	for _, alias := range slices.Sorted(maps.Keys(all)) {
		if err := d.Move(alias, all[alias]); err != nil {
			return err
		}
	}
	return nil
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Settings]():
		return "section"
	case t == reflect.TypeFor[BatchSchedule]():
		return "integers by integer"
	case isSections(t):
		return "list of sections"
	case t == reflect.TypeFor[StaleMicrobatches](), t == reflect.TypeFor[Depth](), t == reflect.TypeFor[Separator]():
		return "integer or text"
	case t == reflect.TypeFor[[]CutPoint]():
		return "list of integers and texts"
	case t == reflect.TypeFor[Choice]():
		return "true, false or auto"
	}
	switch t.Kind() {
	case reflect.Struct:
		return "section"
	case reflect.Slice:
		return "list of " + typeName(t.Elem()) + "s"
	case reflect.Array:
		return fmt.Sprintf("list of %d %ss", t.Len(), typeName(t.Elem()))
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "number"
	case reflect.String:
		return "text"
	}
	return "integer"
}

// inYAML formats a value on one line.
func inYAML(v any) string {
	var n yaml.Node
	if err := n.Encode(v); err != nil {
		panic(err) // values of a config always marshal
	}
	n.Style = yaml.FlowStyle
	out, err := yaml.Marshal(&n)
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(out))
}
