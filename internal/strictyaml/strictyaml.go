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
	into   reflect.Value         // the struct that Decode fills, once it has been called
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
