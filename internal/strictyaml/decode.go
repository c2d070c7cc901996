package strictyaml

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/suggest"
	"go.yaml.in/yaml/v3"
)

// Custom is a type that decodes itself, where the structure of a Go type does not say which values are accepted.
type Custom interface {
	// DecodeYAML reads a node; key is its dotted name, for complaints.
	DecodeYAML(d *Document, n *yaml.Node, key string) error
}

// Decode fills the struct that into points to. Keys that are absent or empty keep what the struct holds.
func (d *Document) Decode(into any) error {
	d.into = reflect.ValueOf(into).Elem()
	return d.DecodeNode(d.root, into, "")
}

// DecodeSection fills what into points to from the value of a dotted key, if that is there.
func (d *Document) DecodeSection(key string, into any) error {
	if n := d.lookup(key); n != nil {
		return d.DecodeNode(n, into, key)
	}
	return nil
}

// DecodeNode fills what into points to from a node, the value of a dotted key.
func (d *Document) DecodeNode(n *yaml.Node, into any, key string) error {
	return d.value(n, reflect.ValueOf(into).Elem(), key)
}

// Entry is a key of a mapping, with its value.
type Entry struct {
	Key   string
	Value *yaml.Node
	Where string // file and line of the value
}

// Entries are the keys of a mapping in their order, for a Custom type; a key that stands there twice is an error.
func (d *Document) Entries(n *yaml.Node, key string) ([]Entry, error) {
	if n.Kind != yaml.MappingNode {
		return nil, d.Errorf(n, key, "found %s, expected a section", Describe(n))
	}
	var es []Entry
	for i := 0; i+1 < len(n.Content); i += 2 {
		label := n.Content[i]
		if label.Kind != yaml.ScalarNode {
			return nil, d.Errorf(label, key, "found %s as a key, expected text", Describe(label))
		}
		if slices.ContainsFunc(es, func(e Entry) bool { return e.Key == label.Value }) {
			return nil, d.Errorf(label, key+"."+label.Value, "the key is given twice")
		}
		es = append(es, Entry{label.Value, n.Content[i+1], d.Where(n.Content[i+1])})
	}
	return es, nil
}

func (d *Document) value(n *yaml.Node, v reflect.Value, key string) error {
	if d.asTyped(n, v, key) {
		return nil
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return d.Errorf(n, key, "anchors and aliases are not supported: write the value out")
	}
	if err := d.typed[n].err; err != nil && !isScalar(v.Kind()) {
		return d.Errorf(n, key, "%v: texts with special characters need quotes, as in [\"*.txt\"]", err)
	}
	if isNull(n) {
		return nil
	}
	if c, ok := v.Addr().Interface().(Custom); ok {
		d.given[key] = true
		return c.DecodeYAML(d, n, key)
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.mapping(n, v, key)
	case reflect.Slice, reflect.Array:
		return d.sequence(n, v, key)
	}
	d.given[key] = true
	if err := scalar(n, v); err != nil {
		return d.Errorf(n, key, "%v", err)
	}
	return nil
}

func (d *Document) mapping(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind != yaml.MappingNode {
		return d.Errorf(n, key, "found %s, expected a section with the keys %s", Describe(n), strings.Join(keys(v), ", "))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		label, child := n.Content[i], n.Content[i+1]
		name := strings.TrimPrefix(key+"."+label.Value, ".")
		f, ok := field(v, label.Value)
		switch {
		case label.Kind != yaml.ScalarNode || !ok:
			return d.Errorf(label, name, "%s", unknownKey(keys(v), d.meant(label.Value, v)))
		case seen[label.Value]:
			return d.Errorf(label, name, "the key is given twice")
		}
		seen[label.Value] = true
		if err := d.value(child, f, name); err != nil {
			return err
		}
	}
	return nil
}

// sequence fills a list. A text in place of a list of texts is a list of one.
func (d *Document) sequence(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String {
		d.given[key] = true
		v.Set(reflect.Append(reflect.MakeSlice(v.Type(), 0, 1), reflect.ValueOf(n.Value).Convert(v.Type().Elem())))
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return d.Errorf(n, key, "found %s, expected a list, [a, b]", Describe(n))
	}
	d.given[key] = true
	if v.Kind() == reflect.Array {
		if len(n.Content) != v.Len() {
			return d.Errorf(n, key, "found a list of %d, expected %d elements", len(n.Content), v.Len())
		}
	} else {
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	}
	for i, c := range n.Content {
		if err := d.value(c, v.Index(i), fmt.Sprintf("%s[%d]", key, i)); err != nil {
			return err
		}
	}
	return nil
}

// scalar stores a number, truth value or text whose YAML type is the field's.
func scalar(n *yaml.Node, v reflect.Value) error {
	wrong := func(expected string) error { return fmt.Errorf("found %s, expected %s", Describe(n), expected) }
	if n.Kind != yaml.ScalarNode {
		return wrong(kindName(v.Kind()))
	}
	tag := n.ShortTag()
	switch v.Kind() {
	case reflect.String:
		if tag != "!!str" {
			return wrong("text (put it in quotes)")
		}
		v.SetString(n.Value)
	case reflect.Bool:
		if tag != "!!bool" {
			return wrong("true or false")
		}
		return n.Decode(v.Addr().Interface())
	case reflect.Int, reflect.Int64, reflect.Uint64:
		if tag != "!!int" {
			return wrong("an integer")
		}
		if err := n.Decode(v.Addr().Interface()); err != nil {
			return wrong("an integer that fits " + v.Kind().String())
		}
	case reflect.Float64:
		if tag != "!!int" && tag != "!!float" {
			return wrong("a number")
		}
		var f float64
		if err := n.Decode(&f); err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return wrong("a finite number")
		}
		v.SetFloat(f)
	default:
		panic("strictyaml: field of unsupported kind " + v.Kind().String())
	}
	return nil
}

func kindName(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return "an integer"
}

// isScalar reports whether values of a kind are numbers, truth values or texts.
func isScalar(k reflect.Kind) bool {
	return k != reflect.Struct && k != reflect.Slice && k != reflect.Array
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Describe returns a short description of a node.
func Describe(n *yaml.Node) string {
	names := map[string]string{"!!str": "text", "!!int": "the integer", "!!float": "the number", "!!bool": "the truth value"}
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	}
	name := names[n.ShortTag()]
	if name == "" {
		name = n.ShortTag()
	}
	value := n.Value
	if len(value) > 40 {
		value = value[:40] + "…"
	}
	if n.ShortTag() == "!!str" {
		value = strconv.Quote(value)
	}
	return name + " " + value
}

// field finds the struct field of a YAML key, looking into inlined structs.
func field(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		name, inline := label(v.Type().Field(i))
		if inline {
			if f, ok := field(v.Field(i), key); ok {
				return f, true
			}
		} else if name != "" && name == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// UnknownKey complains about a key that is none of a section's.
func UnknownKey(key string, section []string) string {
	return unknownKey(section, suggest.Closest(key, section))
}

func unknownKey(section, meant []string) string {
	return "unknown key, expected one of " + strings.Join(section, ", ") + suggest.Question(meant)
}

// meant lists the keys that an unknown key of a section may stand for: close ones, or else those of other sections.
func (d *Document) meant(key string, section reflect.Value) (names []string) {
	if names = suggest.Closest(key, keys(section)); len(names) > 0 {
		return names
	}
	if d.into.IsValid() {
		for _, name := range paths(d.into, "") {
			if strings.HasSuffix(name, "."+key) {
				names = append(names, name)
			}
		}
	}
	return names
}

// paths lists the dotted keys of a struct and of the structs in it.
func paths(v reflect.Value, prefix string) (list []string) {
	for _, key := range keys(v) {
		list = append(list, prefix+key)
		if f, _ := field(v, key); f.Kind() == reflect.Struct {
			list = append(list, paths(f, prefix+key+".")...)
		}
	}
	return list
}

func keys(v reflect.Value) []string {
	var ks []string
	for i := range v.NumField() {
		name, inline := label(v.Type().Field(i))
		if inline {
			ks = append(ks, keys(v.Field(i))...)
		} else if name != "" {
			ks = append(ks, name)
		}
	}
	return slices.Clip(ks)
}

// label is the key of a field, "" if files cannot set it, and whether its own fields' keys stand in its place.
func label(f reflect.StructField) (name string, inline bool) {
	name, rest, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name, rest == "inline"
}
