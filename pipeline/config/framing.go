package config

import (
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"go.yaml.in/yaml/v3"
)

// Choice is true, false or auto.
type Choice string

// Values of a Choice.
const (
	No   Choice = tokenizer.BOSNever
	Yes  Choice = tokenizer.BOSAlways
	Auto Choice = tokenizer.BOSAuto
)

// DecodeYAML accepts true, false and auto.
func (b *Choice) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	var always bool
	switch {
	case n.Value == string(Auto):
		*b = Auto
	case n.ShortTag() == "!!bool" && n.Decode(&always) == nil && always:
		*b = Yes
	case n.ShortTag() == "!!bool":
		*b = No
	default:
		return d.Errorf(n, key, "found %s, expected true, false or auto", strictyaml.Describe(n))
	}
	return nil
}

// MarshalYAML writes true and false as such.
func (b Choice) MarshalYAML() (any, error) {
	if b == Auto {
		return string(b), nil
	}
	return b == Yes, nil
}

// Framing is how documents become tokens.
func (d Data) Framing() tokenizer.Framing {
	return tokenizer.Framing{SpecialText: d.SpecialText, BOS: string(d.BOS)}
}
