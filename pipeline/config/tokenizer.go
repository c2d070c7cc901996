package config

import (
	"fmt"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// completeVocabulary fills in the tokenizer of the initial weights and the vocabulary of the tokenizer, unless they are
// given.
func (c *Config) completeVocabulary(d *strictyaml.Document) error {
	if c.Init.From != "" && !d.Given("data.tokenizer") {
		if err := c.completeTokenizer(d); err != nil {
			return err
		}
	}
	if c.Init.From != "" && !c.Model.FromHook() && !c.Init.ExtendVocab || d.Given("model.vocab_size") {
		return nil // openCorpus compares it with the tokenizer's
	}
	size, err := tokenizer.VocabSize(c.Data.Tokenizer)
	if err != nil {
		return fmt.Errorf("%s: data.tokenizer: %w", d.At("data.tokenizer"), err)
	}
	c.Model.VocabSize = max(c.Model.VocabSize, size) // a preset's may be larger
	return nil
}

// completeTokenizer takes the tokenizer in the folder of the initial weights. A model for bytes needs none there.
func (c *Config) completeTokenizer(d *strictyaml.Document) error {
	path, err := tokenizer.In(c.Init.From)
	switch size, _ := tokenizer.VocabSize(c.Data.Tokenizer); {
	case path != "":
		c.Data.Tokenizer = path
		if name := hub.PinnedPath(path); name != "" && hub.IsAddress(c.paths.asWritten(c.Init.From)) {
			c.paths.written[path] = name
		}
	case err != nil:
		return fmt.Errorf("%s: init.from: %w", d.At("init.from"), err)
	case c.Model.VocabSize != size:
		return fmt.Errorf("%s: init.from: %s has no %s, and its vocabulary of %d is not that of %s: expected data.tokenizer to name the tokenizer of its weights",
			d.At("init.from"), c.Init.From, tokenizer.Names(), c.Model.VocabSize, c.Data.Tokenizer)
	}
	return nil
}
