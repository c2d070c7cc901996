package train

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a YAML file with overrides, decoded strictly: every complaint names the key, and the line or the override
// that it comes from.
type document struct {
	file   string
	root   *yaml.Node
	origin map[*yaml.Node]string // of nodes that an override brought
	set    map[string]bool       // dotted keys that were given a value
}

// parseDocument reads a YAML mapping; an empty text is an empty mapping.
func parseDocument(file string, text []byte) (*document, error) {
	d := &document{file: file, origin: map[*yaml.Node]string{}, set: map[string]bool{}}
	var n, second yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(text))
	if err := in.Decode(&n); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := in.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s:%d: a second document: expected one, without a line of ---", file, second.Line)
	} else if err != io.EOF {
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if n.Kind == 0 || isNull(n.Content[0]) {
		d.root = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		return d, nil
	}
	d.root = n.Content[0]
	if d.root.Kind != yaml.MappingNode {
		return nil, d.errorf(d.root, "", "found %s, expected sections such as \"model:\"", describe(d.root))
	}
	return d, nil
}

// override sets a dotted key: "train.steps=5". The value is YAML: a scalar, [a, b] or {k: v}.
func (d *document) override(assignment string) error {
	name := "--set " + assignment
	key, text, ok := strings.Cut(assignment, "=")
	if !ok || key == "" {
		return fmt.Errorf("%s: expected section.key=value", name)
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	if n.Kind != 0 {
		value = n.Content[0]
	}
	d.claim(value, name)
	at := d.root
	parts := strings.Split(key, ".")
	for i, part := range parts {
		child := find(at, part)
		if child == nil {
			child = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			label := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: part}
			d.origin[child], d.origin[label] = name, name
			at.Content = append(at.Content, label, child)
		}
		if i == len(parts)-1 {
			*child = *value
			d.claim(child, name)
			return nil
		}
		if isNull(child) {
			*child = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			d.origin[child] = name
		}
		if child.Kind != yaml.MappingNode {
			return fmt.Errorf("%s: %s is %s, not a section", name, strings.Join(parts[:i+1], "."), describe(child))
		}
		at = child
	}
	return nil
}

func (d *document) claim(n *yaml.Node, name string) {
	d.origin[n] = name
	for _, c := range n.Content {
		d.claim(c, name)
	}
}

func find(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func (d *document) where(n *yaml.Node) string {
	if o, ok := d.origin[n]; ok {
		return o
	}
	return fmt.Sprintf("%s:%d", d.file, n.Line)
}

func (d *document) errorf(n *yaml.Node, key, format string, args ...any) error {
	if key != "" {
		key += ": "
	}
	return fmt.Errorf("%s: %s%s", d.where(n), key, fmt.Sprintf(format, args...))
}

// at says where the value of a dotted key stands, for complaints found after decoding.
func (d *document) at(key string) string {
	n := d.root
	for part := range strings.SplitSeq(key, ".") {
		next := find(n, part)
		if next == nil {
			return d.file
		}
		n = next
	}
	return d.where(n)
}

// decode fills the struct that into points to. Keys that are absent or empty keep what the struct holds.
func (d *document) decode(into any) error {
	return d.value(d.root, reflect.ValueOf(into).Elem(), "")
}

func (d *document) value(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return d.errorf(n, key, "anchors and aliases are not supported: write the value out")
	}
	if isNull(n) {
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.mapping(n, v, key)
	case reflect.Slice, reflect.Array:
		return d.sequence(n, v, key)
	}
	d.set[key] = true
	if err := scalar(n, v); err != nil {
		return d.errorf(n, key, "%v", err)
	}
	return nil
}

func (d *document) mapping(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind != yaml.MappingNode {
		return d.errorf(n, key, "found %s, expected a section with the keys %s", describe(n), strings.Join(keys(v), ", "))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		label, child := n.Content[i], n.Content[i+1]
		name := strings.TrimPrefix(key+"."+label.Value, ".")
		f, ok := field(v, label.Value)
		switch {
		case label.Kind != yaml.ScalarNode || !ok:
			return d.errorf(label, name, "unknown key, expected one of %s", strings.Join(keys(v), ", "))
		case seen[label.Value]:
			return d.errorf(label, name, "the key is given twice")
		}
		seen[label.Value] = true
		if err := d.value(child, f, name); err != nil {
			return err
		}
	}
	return nil
}

func (d *document) sequence(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind != yaml.SequenceNode {
		return d.errorf(n, key, "found %s, expected a list, [a, b]", describe(n))
	}
	d.set[key] = true
	if v.Kind() == reflect.Array {
		if len(n.Content) != v.Len() {
			return d.errorf(n, key, "found a list of %d, expected %d elements", len(n.Content), v.Len())
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
	wrong := func(expected string) error { return fmt.Errorf("found %s, expected %s", describe(n), expected) }
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
		panic("config: field of unsupported kind " + v.Kind().String())
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

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe tells what a node is, shortened.
func describe(n *yaml.Node) string {
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
		name, rest, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if rest == "inline" {
			if f, ok := field(v.Field(i), key); ok {
				return f, true
			}
		} else if name == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keys(v reflect.Value) []string {
	var ks []string
	for i := range v.NumField() {
		name, rest, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if rest == "inline" {
			ks = append(ks, keys(v.Field(i))...)
		} else {
			ks = append(ks, name)
		}
	}
	return slices.Clip(ks)
}
