package config

import (
	"encoding/json"
	"reflect"
	"strings"
)

// schema is a JSON schema of draft 2020-12, as far as configs need it.
type schema struct {
	Dialect     string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        any                `json:"type,omitempty"` // a name, or several
	Enum        []string           `json:"enum,omitempty"`
	Default     any                `json:"default,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Closed      *bool              `json:"additionalProperties,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	MinItems    int                `json:"minItems,omitempty"`
	MaxItems    int                `json:"maxItems,omitempty"`
}

// JSONSchema returns a JSON schema of the config, with which editors complete and check keys.
func JSONSchema() []byte {
	root := section("A run of gpupipe")
	root.Dialect = "https://json-schema.org/draft/2020-12/schema"
	for _, k := range Keys() {
		parent, name := root, k.Name
		for {
			head, rest, below := strings.Cut(name, ".")
			if !below {
				break
			}
			if list, ok := strings.CutSuffix(head, "[]"); ok {
				parent = parent.Properties[list].Items
			} else {
				parent = parent.Properties[head]
			}
			name = rest
		}
		parent.Properties[name] = k.schema()
	}
	for alias, key := range aliases() {
		parent, name, _ := strings.Cut(alias, ".")
		current, _ := FindKey(key)
		s := valueSchema(current.goType)
		s.Description = "An older name of " + key + "."
		root.Properties[parent].Properties[name] = s
	}
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return append(out, '\n')
}

// section is the schema of a mapping that has only the keys that are added.
func section(title string) *schema {
	closed := false
	return &schema{Title: title, Type: "object", Properties: map[string]*schema{}, Closed: &closed}
}

func (k Key) schema() *schema {
	var s *schema
	switch {
	case k.Section():
		s = section("")
	case k.goType == reflect.TypeFor[Settings]():
		s = &schema{Type: "object"}
	case isSections(k.goType):
		s = &schema{Type: "array", Items: section("")}
	default:
		s = valueSchema(k.goType)
	}
	s.Description, s.Enum, s.Default = k.Help, k.Values, k.preset
	if k.preset == nil && k.Default != "" {
		s.Description += " Default: " + k.Default + "."
	}
	return s
}

// valueSchema is the schema of a value that is not a section. A text may stand for a list of one.
func valueSchema(t reflect.Type) *schema {
	if t == reflect.TypeFor[StaleMicrobatches]() || t == reflect.TypeFor[Depth]() || t == reflect.TypeFor[Separator]() ||
		t == reflect.TypeFor[CutPoint]() {
		return &schema{Type: []string{"integer", "string"}}
	}
	if t == reflect.TypeFor[Choice]() {
		return &schema{Type: []string{"boolean", "string"}}
	}
	switch t.Kind() {
	case reflect.Map:
		return &schema{Type: "object"}
	case reflect.Slice:
		s := &schema{Type: "array", Items: valueSchema(t.Elem())}
		if t.Elem().Kind() == reflect.String {
			s.Type = []string{"array", "string"}
		}
		return s
	case reflect.Array:
		return &schema{Type: "array", Items: valueSchema(t.Elem()), MinItems: t.Len(), MaxItems: t.Len()}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Float64:
		return &schema{Type: "number"}
	case reflect.String:
		return &schema{Type: "string"}
	}
	return &schema{Type: "integer"}
}
