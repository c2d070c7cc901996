// Package strictyaml decodes YAML files that people write: unknown keys, keys given twice, values of the wrong type and
// anchors are errors, and every error names the key and its line, or the override that the value came from.
package strictyaml

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Document is a YAML mapping with overrides.
type Document struct {
	file   string
	root   *yaml.Node
	origin map[*yaml.Node]string // of nodes that an override brought
	given  map[string]bool       // dotted keys that were decoded from a value
}

// Custom is a type that decodes itself, where the structure of a Go type does not say what is accepted.
type Custom interface {
	// DecodeYAML reads a node; key is its dotted name, for complaints.
	DecodeYAML(d *Document, n *yaml.Node, key string) error
}

// ReadSmall reads a regular file of at most a mebibyte, which no file that people write exceeds.
func ReadSmall(path string) ([]byte, error) {
	const limit = 1 << 20
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case st.Size() > limit:
		return nil, fmt.Errorf("%s: %d bytes, expected at most %d", path, st.Size(), limit)
	}
	return os.ReadFile(path)
}

// Load parses a file.
func Load(path string) (*Document, error) {
	text, err := ReadSmall(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// Parse reads a YAML mapping; an empty text is an empty mapping. file is how errors name it.
func Parse(file string, text []byte) (*Document, error) {
	d := &Document{file: file, origin: map[*yaml.Node]string{}, given: map[string]bool{}}
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
		return nil, d.Errorf(d.root, "", "found %s, expected sections such as \"model:\"", Describe(d.root))
	}
	return d, nil
}

// Clone is a copy that can be changed by itself, with nothing decoded yet.
func (d *Document) Clone() *Document { return d.Under(d.root) }

// Under is a copy of one of d's sections as a document of its own.
func (d *Document) Under(section *yaml.Node) *Document {
	c := &Document{file: d.file, origin: map[*yaml.Node]string{}, given: map[string]bool{}}
	c.root = c.adopt(section, d)
	return c
}

// adopt copies a node of another document with all below it, and remembers where they came from.
func (d *Document) adopt(n *yaml.Node, from *Document) *yaml.Node {
	c := *n
	if o, ok := from.origin[n]; ok {
		d.origin[&c] = o
	}
	c.Content = make([]*yaml.Node, len(n.Content))
	for i, child := range n.Content {
		c.Content[i] = d.adopt(child, from)
	}
	return &c
}

// Override sets a dotted key from the command line: "train.steps=5". The value is YAML: a scalar, [a, b] or {k: v}.
func (d *Document) Override(assignment string) error {
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
	return d.Put(key, value, name)
}

// Put sets a dotted key, making the sections on the way. Complaints about the value name origin instead of a line; if
// it is empty, they name the value's line.
func (d *Document) Put(key string, value *yaml.Node, origin string) error {
	at := d.root
	parts := strings.Split(key, ".")
	for i, part := range parts {
		child := find(at, part)
		if child == nil {
			child = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			label := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: part}
			child.Line, label.Line = value.Line, value.Line
			if origin != "" {
				d.origin[child], d.origin[label] = origin, origin
			}
			at.Content = append(at.Content, label, child)
		}
		if i == len(parts)-1 {
			*child = *d.adopt(value, d)
			if origin != "" {
				d.claim(child, origin)
			}
			return nil
		}
		if isNull(child) {
			*child = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: value.Line}
			if origin != "" {
				d.origin[child] = origin
			}
		}
		if child.Kind != yaml.MappingNode {
			return fmt.Errorf("%s: %s is %s, not a section", origin, strings.Join(parts[:i+1], "."), Describe(child))
		}
		at = child
	}
	return nil
}

// Move gives the value of a dotted key another name, which an alias stands for. If there are values under both names,
// that of an override wins; two values of the file, or of overrides, are an error.
func (d *Document) Move(alias, key string) error {
	section, name := "", alias
	if i := strings.LastIndex(alias, "."); i >= 0 {
		section, name = alias[:i], alias[i+1:]
	}
	parent := d.root
	if section != "" {
		parent = d.lookup(section)
	}
	if parent == nil || parent.Kind != yaml.MappingNode {
		return nil
	}
	i := 0
	for i < len(parent.Content) && parent.Content[i].Value != name {
		i += 2
	}
	if i >= len(parent.Content) {
		return nil
	}
	value := parent.Content[i+1]
	parent.Content = slices.Delete(parent.Content, i, i+2)
	if other := d.lookup(key); other != nil && !isNull(other) {
		switch mine, theirs := d.origin[value] != "", d.origin[other] != ""; {
		case mine == theirs:
			return d.Errorf(value, alias, "the key is given twice, here and as %s", key)
		case theirs:
			return nil
		}
	}
	return d.Put(key, value, d.origin[value])
}

func (d *Document) claim(n *yaml.Node, name string) {
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

// Where is the file and line of a node, or the override that brought it.
func (d *Document) Where(n *yaml.Node) string {
	if o, ok := d.origin[n]; ok {
		return o
	}
	return fmt.Sprintf("%s:%d", d.file, n.Line)
}

// Errorf is a complaint about a node, the value of a dotted key.
func (d *Document) Errorf(n *yaml.Node, key, format string, args ...any) error {
	if key != "" {
		key += ": "
	}
	return fmt.Errorf("%s: %s%s", d.Where(n), key, fmt.Sprintf(format, args...))
}

// At says where the value of a dotted key stands, for complaints found after decoding.
func (d *Document) At(key string) string {
	if n := d.lookup(key); n != nil {
		return d.Where(n)
	}
	return d.file
}

// Overridden reports whether the value of a dotted key, or a part of it, came from Override or Put instead of the file.
func (d *Document) Overridden(key string) bool {
	n := d.lookup(key)
	return n != nil && (d.origin[n] != "" || slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return d.origin[c] != "" }))
}

// lookup is the node of a dotted key, list[i] being an element; nil: there is none.
func (d *Document) lookup(key string) *yaml.Node {
	n := d.root
	for part := range strings.SplitSeq(key, ".") {
		name, index, indexed := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		if n = find(n, name); n == nil {
			return nil
		}
		if !indexed {
			continue
		}
		i, err := strconv.Atoi(index)
		if err != nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
			return nil
		}
		n = n.Content[i]
	}
	return n
}

// Filled reports whether a dotted key is a section or a list that is not empty.
func (d *Document) Filled(key string) bool {
	n := d.lookup(key)
	return n != nil && len(n.Content) > 0
}

// Given reports whether a scalar or list was decoded from the dotted key.
func (d *Document) Given(key string) bool { return d.given[key] }

// Decode fills the struct that into points to. Keys that are absent or empty keep what the struct holds.
func (d *Document) Decode(into any) error { return d.DecodeNode(d.root, into, "") }

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
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return d.Errorf(n, key, "anchors and aliases are not supported: write the value out")
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
			return d.Errorf(label, name, "unknown key, expected one of %s", strings.Join(keys(v), ", "))
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

// Flatten turns YAML into dotted keys and their values' texts, to compare two files.
func Flatten(text []byte) (map[string]string, error) {
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	out := map[string]string{}
	var walk func(key string, v any)
	walk = func(key string, v any) {
		if m, ok := v.(map[string]any); ok {
			for k, x := range m {
				walk(strings.TrimPrefix(key+"."+k, "."), x)
			}
			return
		}
		out[key] = fmt.Sprint(v)
	}
	walk("", tree)
	return out, nil
}
