package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// typed is the value of an override as it was typed. Keys that hold texts take it as it is: a shell has read its quotes
// already, so that "#", "*" and "010" mean themselves.
type typed struct {
	text string
	err  error // if the text is no YAML
}

// commandLine begins the origin of what Override has set.
const commandLine = "--set "

// Override sets a dotted key from the command line: "train.steps=5", and "data.train[0]=a.txt" for an element of a
// list. The value of a key that holds a text is that text, with or without quotes. Other values are YAML: a scalar, [a,
// b] or {k: v}.
func (d *Document) Override(assignment string) error {
	return d.OverrideFrom(assignment, commandLine+assignment)
}

// OverrideFrom is Override of an assignment that was on an earlier command line. Complaints name origin.
func (d *Document) OverrideFrom(assignment, origin string) error {
	key, text, ok := strings.Cut(assignment, "=")
	if !ok || key == "" {
		return fmt.Errorf("%s: expected section.key=value", origin)
	}
	text = strings.TrimSpace(text)
	var n yaml.Node
	err := yaml.Unmarshal([]byte(text), &n)
	if err != nil {
		err = errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var value *yaml.Node
	switch {
	case text == "":
		value = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	case err != nil || n.Kind == 0: // a comment
		value = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	default:
		value = n.Content[0]
	}
	if text != "" && !quoted(value) {
		d.typed[value] = typed{text, err}
	}
	return d.Put(key, value, origin)
}

// Change replaces the texts of all values by what change makes of them.
func (d *Document) Change(change func(text string) string) { d.change(d.root, change) }

func (d *Document) change(n *yaml.Node, change func(text string) string) {
	if t, ok := d.typed[n]; ok {
		t.text = change(t.text)
		d.typed[n] = t
	}
	if n.Kind == yaml.ScalarNode {
		n.Value = change(n.Value)
	}
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 { // not a key
			d.change(child, change)
		}
	}
}

// FromCommandLine reports whether Override has set the value of a dotted key, list[i] being an element.
func (d *Document) FromCommandLine(key string) bool {
	n := d.lookup(key)
	return n != nil && strings.HasPrefix(d.origin[n], commandLine)
}

func quoted(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0
}

// asTyped stores the value of an override in a text, or in a list of texts that is no list in YAML, as it was typed. It
// reports whether it did.
func (d *Document) asTyped(n *yaml.Node, v reflect.Value, key string) bool {
	t, ok := d.typed[n]
	if !ok {
		return false
	}
	if _, custom := v.Addr().Interface().(Custom); custom {
		return false
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(t.text)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String && n.Kind != yaml.SequenceNode &&
		!strings.HasPrefix(t.text, "[") && !isNull(n):
		v.Set(reflect.Append(reflect.MakeSlice(v.Type(), 0, 1), reflect.ValueOf(t.text).Convert(v.Type().Elem())))
	default:
		return false
	}
	d.given[key] = true
	return true
}

// Put sets a dotted key, making the sections on the way; list[i] is an element of a list, or the one after its last.
// Complaints about the value name origin instead of a line; if it is empty, they name the value's line.
func (d *Document) Put(key string, value *yaml.Node, origin string) error {
	at := d.root
	parts := strings.Split(key, ".")
	for i, part := range parts {
		name, index, err := splitPart(part)
		if err != nil {
			return fmt.Errorf("%s: %w", origin, err)
		}
		path := strings.Join(append(slices.Clone(parts[:i]), name), ".")
		child := d.child(at, name, value.Line, origin)
		if index >= 0 {
			if child, err = d.element(child, index, value.Line, origin); err != nil {
				return fmt.Errorf("%s: %s%w", origin, path, err)
			}
		}
		if i == len(parts)-1 {
			d.replace(key, child, value, origin)
			return nil
		}
		if isNull(child) {
			*child = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: value.Line}
			d.bring(child, origin)
		}
		switch child.Kind {
		case yaml.MappingNode:
		case yaml.SequenceNode:
			return fmt.Errorf("%s: %s is a list, not a section: %s[0] is its first element", origin, path, path)
		default:
			return fmt.Errorf("%s: %s is %s, not a section", origin, path, Describe(child))
		}
		at = child
	}
	return nil
}

// splitPart splits a part of a dotted key, as in train[2]. The index is -1 if there is none.
func splitPart(part string) (name string, index int, err error) {
	name, rest, indexed := strings.Cut(part, "[")
	if !indexed {
		return name, -1, nil
	}
	digits, closed := strings.CutSuffix(rest, "]")
	index, err = strconv.Atoi(digits)
	if err != nil || !closed || index < 0 {
		return name, -1, fmt.Errorf("found %s, expected an element of a list as in %s[0]", part, name)
	}
	return name, index, nil
}

// child is the value of a key of a mapping; without one it becomes an empty section.
func (d *Document) child(mapping *yaml.Node, key string, line int, origin string) *yaml.Node {
	if child := find(mapping, key); child != nil {
		return child
	}
	child := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: line}
	label := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: line}
	d.bring(child, origin)
	d.bring(label, origin)
	mapping.Content = append(mapping.Content, label, child)
	return child
}

// element is an element of a list, which gets one more if the index is its length. A text stands for a list of one.
func (d *Document) element(list *yaml.Node, index, line int, origin string) (*yaml.Node, error) {
	switch {
	case isNull(list) || list.Kind == yaml.MappingNode && len(list.Content) == 0:
		*list = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: line}
		d.bring(list, origin)
	case list.Kind == yaml.ScalarNode:
		first := d.adopt(list, d)
		*list = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: list.Line, Content: []*yaml.Node{first}}
		delete(d.typed, list)
	case list.Kind != yaml.SequenceNode:
		return nil, fmt.Errorf(" is %s, not a list", Describe(list))
	}
	if n := len(list.Content); index > n {
		return nil, fmt.Errorf("[%d]: the list has %d elements, expected an index of at most %d", index, n, n)
	} else if index == n {
		e := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: line}
		d.bring(e, origin)
		list.Content = append(list.Content, e)
	}
	return list.Content[index], nil
}

// bring remembers where a node came from, unless origin is empty.
func (d *Document) bring(n *yaml.Node, origin string) {
	if origin != "" {
		d.origin[n] = origin
	}
}

// replace gives n, the node of a dotted key, another value.
func (d *Document) replace(key string, n, value *yaml.Node, origin string) {
	if dropped := missing(n, value); origin != "" && len(dropped) > 0 {
		d.replaced = append(d.replaced, fmt.Sprintf("%s: it replaces the whole section %s, without its %s", origin, key,
			strings.Join(dropped, ", ")))
	}
	*n = *d.adopt(value, d)
	delete(d.typed, n)
	if t, ok := d.typed[value]; ok {
		d.typed[n] = t
	}
	if origin != "" {
		d.claim(n, origin)
	}
}

// missing are the keys of a section that another value for it lacks.
func missing(section, value *yaml.Node) (keys []string) {
	if section.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(section.Content); i += 2 {
		if k := section.Content[i].Value; find(value, k) == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// Replaced are sentences about overrides of whole sections: which keys of these they have dropped.
func (d *Document) Replaced() []string { return slices.Clone(d.replaced) }
