package config

import (
	"strconv"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"go.yaml.in/yaml/v3"
)

// Separator is the number of a token, or SeparatorAuto.
type Separator string

// SeparatorAuto is any token that the tokenizer knows to end a document.
const SeparatorAuto Separator = "auto"

// Values of data.pack.
const (
	PackConcat  = "concat"
	PackBestFit = "best_fit"
)

// DecodeYAML accepts a number of at least 0 and auto.
func (s *Separator) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	var number uint32
	switch {
	case n.Value == string(SeparatorAuto):
		*s = SeparatorAuto
	case n.ShortTag() == "!!int" && n.Decode(&number) == nil:
		*s = Separator(strconv.FormatUint(uint64(number), 10))
	default:
		return d.Errorf(n, key, "found %s, expected auto or the number of a token", strictyaml.Describe(n))
	}
	return nil
}

// MarshalYAML writes a number as such.
func (s Separator) MarshalYAML() (any, error) { return numberOrText(string(s)), nil }

// Token is the number; ok is false if it is auto.
func (s Separator) Token() (token uint32, ok bool) {
	n, err := strconv.ParseUint(string(s), 10, 32)
	return uint32(n), err == nil
}

// Ends lists the tokens that end documents: data.separator, or the tokenizer's. The first is the token that is written.
// The list is empty if there are none.
func (d Data) Ends(s *tokenizer.Special) []uint32 {
	if token, ok := d.Separator.Token(); ok {
		return []uint32{token}
	}
	return s.WrittenFirst()
}

// Documents reports whether batches know where documents end.
func (d Data) Documents() bool { return d.DocumentMask || d.Pack == PackBestFit }

// validateDocuments checks the keys that need to know documents.
func (c Config) validateDocuments() error {
	token, set := c.Data.Separator.Token()
	switch {
	case c.Data.Pack != PackConcat && c.Data.Pack != PackBestFit:
		return Invalid("data.pack", c.Data.Pack, "%s or %s", PackConcat, PackBestFit)
	case c.Data.SpecialText != tokenizer.SpecialAsToken && c.Data.SpecialText != tokenizer.SpecialAsText:
		return Invalid("data.special_text", c.Data.SpecialText, "%s or %s", tokenizer.SpecialAsToken, tokenizer.SpecialAsText)
	case c.Data.Pack == PackBestFit && len(c.Data.Aligned) > 0:
		return Invalid("data.aligned", c.Data.Aligned, "none with data.pack: %s, which moves tokens", PackBestFit)
	case set && !c.Data.Documents():
		return Invalid("data.separator", token, "auto without data.document_mask and data.pack: %s", PackBestFit)
	case set && int64(token) >= int64(c.Model.VocabSize):
		return Invalid("data.separator", token, "a token below model.vocab_size, %d", c.Model.VocabSize)
	}
	return nil
}
