package inference

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// tokenizer opens the named tokenizer; "": the model's own.
func (src *Source) tokenizer(name string) (tokenizer.Tokenizer, error) {
	own, err := tokenizer.In(src.Dir)
	switch {
	case name != "":
	case src.config != nil && tokenizer.BuiltIn(src.config.Data.Tokenizer):
		name = src.config.Data.Tokenizer
	case err != nil:
		return nil, err
	case own != "" && src.checkpoint != nil && !src.checkpoint.Has(tokenizer.ConfigFile):
		return src.oldTokenizer(own)
	case own != "":
		name = own
	case src.Model.Size().VocabSize == 256:
		name = "bytes"
	default:
		return nil, fmt.Errorf("%s: no %s: name a tokenizer with --tokenizer", src.Dir, tokenizer.Names())
	}
	return tokenizer.Open(name)
}

// oldTokenizer opens the tokenizer of a checkpoint by an earlier version of this program, which kept tokenizer.json
// alone: the run's own tokenizer if it is still there, else the one that the file is.
func (src *Source) oldTokenizer(path string) (tokenizer.Tokenizer, error) {
	kept, err := tokenizer.Open(path)
	if err != nil {
		return nil, err
	}
	name := src.config.Data.Tokenizer
	if own, err := tokenizer.Open(name); err == nil && tokenizer.Is(own, kept.Hash()) {
		src.assumed = fmt.Sprintf("%s keeps %s alone: its special tokens and chat template are assumed to be those of %s", src.Dir,
			tokenizer.File, name)
		return own, nil
	}
	end := "no token ends a document"
	if token, ok := kept.Special().Roles[tokenizer.RoleEOS]; ok {
		end = fmt.Sprintf("%s is assumed to end a document", token.Text)
	}
	src.assumed = fmt.Sprintf("%s keeps %s alone, and the tokenizer of its run, %s, is not there: %s; name the tokenizer with --tokenizer",
		src.Dir, tokenizer.File, name, end)
	return kept, nil
}
