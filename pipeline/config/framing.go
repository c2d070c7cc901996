package config

import (
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"go.yaml.in/yaml/v3"
)

// BOS is tokenizer.BOSNever, BOSAlways or BOSAuto: false, true or auto.
type BOS string

// DecodeYAML accepts true, false and auto.
func (b *BOS) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	var always bool
	switch {
	case n.Value == tokenizer.BOSAuto:
		*b = tokenizer.BOSAuto
	case n.ShortTag() == "!!bool" && n.Decode(&always) == nil && always:
		*b = tokenizer.BOSAlways
	case n.ShortTag() == "!!bool":
		*b = tokenizer.BOSNever
	default:
		return d.Errorf(n, key, "found %s, expected true, false or auto", strictyaml.Describe(n))
	}
	return nil
}

// MarshalYAML writes true and false as such.
func (b BOS) MarshalYAML() (any, error) {
	if b == tokenizer.BOSAuto {
		return string(b), nil
	}
	return b == tokenizer.BOSAlways, nil
}

// Framing is how documents become tokens.
func (d Data) Framing() tokenizer.Framing {
	return tokenizer.Framing{SpecialText: d.SpecialText, BOS: string(d.BOS)}
}
