// Package strictyaml decodes YAML files that people write: unknown keys, keys given twice, values of the wrong type and
// anchors are errors, and every error names the key and its line, or the override that the value came from.
package strictyaml

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Document is a YAML mapping with overrides.
type Document struct {
	file   string
	root   *yaml.Node
	origin map[*yaml.Node]string // of nodes that an override brought
	typed  map[*yaml.Node]typed  // values of overrides, as they were typed
	given  map[string]bool       // dotted keys that were decoded from a value
	into   reflect.Value         // the struct that Decode fills, once it has been called

	replaced []string // what overrides of whole sections have dropped
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
	d := &Document{file: file, origin: map[*yaml.Node]string{}, typed: map[*yaml.Node]typed{}, given: map[string]bool{}}
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
	c := &Document{file: d.file, origin: map[*yaml.Node]string{}, typed: map[*yaml.Node]typed{}, given: map[string]bool{}}
	c.root, c.replaced = c.adopt(section, d), slices.Clone(d.replaced)
	return c
}

// adopt copies a node of another document with all below it, and remembers where they came from.
func (d *Document) adopt(n *yaml.Node, from *Document) *yaml.Node {
	c := *n
	if o, ok := from.origin[n]; ok {
		d.origin[&c] = o
	}
	if t, ok := from.typed[n]; ok {
		d.typed[&c] = t
	}
	c.Content = make([]*yaml.Node, len(n.Content))
	for i, child := range n.Content {
		c.Content[i] = d.adopt(child, from)
	}
	return &c
}

// Move gives the value of a dotted key another name, which an alias stands for. If there are values under both names,
// the value of an override wins; two values of the file, or of overrides, are an error.
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

// FromFile reports whether the value of a dotted key, list[i] being an element, is the file's: neither Override nor Put
// has set it.
func (d *Document) FromFile(key string) bool {
	n := d.lookup(key)
	return n != nil && d.origin[n] == ""
}

// lookup is the node of a dotted key, list[i] being an element; nil: there is none.
func (d *Document) lookup(key string) *yaml.Node {
	n := d.root
	for part := range strings.SplitSeq(key, ".") {
		name, index, err := splitPart(part)
		if n = find(n, name); n == nil || err != nil {
			return nil
		}
		if index < 0 || index == 0 && n.Kind == yaml.ScalarNode { // a text stands for a list of one
			continue
		}
		if n.Kind != yaml.SequenceNode || index >= len(n.Content) {
			return nil
		}
		n = n.Content[index]
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
