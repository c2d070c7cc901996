package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"go.yaml.in/yaml/v3"
)

// Key describes a key of the config. The fields of the structs are its source: their types, their yaml and help tags, and defaults().
type Key struct {
	Name    string   // with its sections, as in train.steps; hooks[] stands for an element of hooks
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
	walk(reflect.ValueOf(c), "", func(k Key) { keys = append(keys, k) })
	perOptimizer(keys)
	return keys
}

// FindKey returns a key by its name.
func FindKey(name string) (Key, bool) {
	keys := Keys()
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	if i < 0 {
		return Key{}, false
	}
	return keys[i], true
}

// fields visits the fields of a struct that have a YAML key, and those below them, each with its dotted name.
func fields(v reflect.Value, prefix string, visit func(name string, f reflect.StructField, v reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			fields(v.Field(i), prefix, visit)
		case name != "":
			visit(prefix+name, f, v.Field(i))
			if isSection(f.Type) {
				fields(v.Field(i), prefix+name+".", visit)
			}
		}
	}
}

func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[Settings]()
}

// walk visits the keys of a struct.
func walk(v reflect.Value, prefix string, visit func(Key)) {
	fields(v, prefix, func(name string, f reflect.StructField, v reflect.Value) {
		k := Key{Name: name, Type: typeName(f.Type), Help: f.Tag.Get("help"), Values: values()[name], goType: f.Type}
		switch text := f.Tag.Get("default"); {
		case text != "":
			k.Default = text
		case hasDefault(name, v):
			k.preset = v.Interface()
			k.Default = inYAML(k.preset)
		}
		visit(k)
		if f.Type == reflect.TypeFor[[]Hook]() {
			walk(reflect.Zero(f.Type.Elem()), name+"[].", visit)
		}
	})
}

// hasDefault reports whether a value is a default. Sizes of models have none, and empty texts and lists say nothing.
func hasDefault(name string, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		return false
	case reflect.Slice, reflect.String:
		return !v.IsZero()
	case reflect.Int:
		return !v.IsZero() || !strings.HasPrefix(name, "model.")
	}
	return true
}

// values lists the values of keys that have only these.
func values() map[string][]string {
	return map[string][]string{
		"model.preset":            model.Presets(),
		"model.arch":              append(model.Architectures(), ArchHook),
		"train.precision":         {graph.F32.String(), graph.F16.String(), graph.BF16.String()},
		"train.nonfinite":         {Stop, Skip},
		"optimizer.name":          OptimizerNames(),
		"optimizer.newton_schulz": {"jordan", "polar_express"},
		"optimizer.scale":         {"spectral", "match_rms_adamw"},
		"lr.schedule":             {"cosine", "linear", "wsd", "constant"},
		"pipeline.correction":     {CorrectionNone, CorrectionErrorFeedback, "weight_prediction", "dc_asgd"},
		"pipeline.recompute":      {RecomputeAuto, RecomputeAlways, RecomputeNever},
		"pipeline.isolate":        {IsolateNone, IsolateProcess},
		"hooks[].hook":            hook.Names(),
		"hooks[].on_error":        {Stop, Skip},
	}
}

// perOptimizer replaces the defaults that depend on optimizer.name by a list.
func perOptimizer(keys []Key) {
	found := map[string][]string{} // by key, one for each optimizer
	for _, name := range OptimizerNames() {
		c, err := Parse("", nil, []string{"model.preset=tiny", "data.train=a", "run.dir=a", "optimizer.name=" + name})
		if err != nil {
			panic(err) // a config with the defaults is valid
		}
		walk(reflect.ValueOf(c.Optimizer), "optimizer.", func(k Key) { found[k.Name] = append(found[k.Name], k.Default) })
	}
	for i, k := range keys {
		all := found[k.Name]
		if k.Section() || k.Name == "optimizer.name" || len(slices.Compact(slices.Clone(all))) < 2 {
			continue
		}
		var texts []string
		for j, name := range OptimizerNames() {
			if all[j] != "" {
				texts = append(texts, name+" "+all[j])
			}
		}
		keys[i].Default, keys[i].preset = strings.Join(texts, ", "), nil
	}
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Settings]():
		return "section"
	case t == reflect.TypeFor[[]Hook]():
		return "list of sections"
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
