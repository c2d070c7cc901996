package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
)

// names are the files of tokenizers, in the order in which a folder is searched.
var names = []string{File, tekkenFile, SentencePieceFile, kimiFile, qwenFile, mergesFile}

// Names lists the files of tokenizers that In looks for, for messages.
func Names() string {
	return strings.Join(names[:len(names)-1], ", ") + ", " + vocabFile + " with " + mergesFile + ", *" + tiktokenExt + " or one GGUF file"
}

// fileIn returns the path of the tokenizer in a folder; it is empty if there is none.
func fileIn(folder string) (path string, err error) {
	for _, name := range names {
		path = filepath.Join(folder, name)
		if _, err = os.Stat(path); err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	for _, ext := range []string{tiktokenExt, ".gguf"} {
		found, err := filepath.Glob(filepath.Join(userpath.Literal(folder), "*"+ext))
		if err != nil {
			return "", err
		}
		found = slices.DeleteFunc(found, func(path string) bool { // parts after the first
			at, _, isPart := gguf.PartName(path)
			return isPart && at > 1
		})
		switch {
		case len(found) > 1:
			return "", fmt.Errorf("%s: found %d files *%s, expected one: name the file", folder, len(found), ext)
		case len(found) == 1:
			return found[0], nil
		}
	}
	return "", nil
}

// hasClass reports whether a class of transformers that the folder names reads the file that fileIn has found, by rules
// that are not the file's own.
func hasClass(path string) (bool, error) {
	folder := filepath.Dir(path)
	switch filepath.Base(path) {
	case SentencePieceFile:
		_, err := os.Stat(filepath.Join(folder, ConfigFile))
		return err == nil, nil
	case File:
		class, err := findClass(folder, false)
		return err == nil && class.hasParts(), err
	}
	return false, nil
}

// readFormat reads the file of a tokenizer, of any format but GGUF, as the content of a tokenizer.json. d is what files
// beside it say; readFormat adds what the format defines. classed: the class that the folder names reads the file.
func readFormat(path string, classed bool, d *description) ([]byte, error) {
	data, err := readLimited(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	base := filepath.Base(path)
	switch {
	case base == vocabFile || base == mergesFile:
		return readVocabAndMerges(filepath.Dir(path), d)
	case strings.HasPrefix(base, "tekken") && filepath.Ext(base) == ".json":
		data, err = fromTekken(data, d)
	case filepath.Ext(base) == tiktokenExt, filepath.Ext(base) == filepath.Ext(SentencePieceFile) && isTiktoken(data):
		data, err = fromTiktoken(base, data, d)
	case classed && base == SentencePieceFile:
		return fromModelFolder(filepath.Dir(path), data, d)
	case filepath.Ext(base) == filepath.Ext(SentencePieceFile):
		d.searchInText()
		data, err = fromSentencePiece(data)
	default: // transformers takes the tokens around a text from tokenizer.json alone
		d.addBOS, d.addEOS = nil, nil
		if classed {
			return fromJSONFolder(filepath.Dir(path), data, d)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// setDefaults gives tokens to roles that no file beside the tokenizer gives or denies a token.
func (d *description) setDefaults(from string, tokens map[string]string) {
	for role, text := range tokens {
		if _, ok := d.roles[role]; !ok {
			d.roles[role] = addedToken{ID: -1, Content: text, Special: true}
		}
	}
	d.added = slices.DeleteFunc(d.added, func(t sideToken) bool { return t.ID < 0 }) // tokens of roles
	d.addSpecial(from)
}

// bpeFile is a tokenizer.json of a byte-level BPE with the parts of a class.
func bpeFile(parts, model object) []byte {
	maps.Copy(model, parts["model"].(object))
	out := object{"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": []addedToken{}, "normalizer": nil,
		"post_processor": nil}
	maps.Copy(out, parts)
	out["model"] = model
	return encoded(out)
}

func bpeModel(vocab map[string]int, merges [][2]string, ignoreMerges bool) object {
	return object{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"fuse_unk": false, "byte_fallback": false, "ignore_merges": ignoreMerges, "vocab": vocab, "merges": merges}
}

// splitFile is a tokenizer.json of a byte-level BPE without special rules, whose pattern is in Oniguruma's syntax.
// Special tokens come by their numbers.
func splitFile(pattern string, nfc bool, vocab map[string]int, merges [][2]string, special []addedToken) []byte {
	parts := splitParts(pattern)(classConfig{})
	if !nfc {
		parts["normalizer"] = nil
	}
	parts["added_tokens"] = special
	return bpeFile(parts, bpeModel(vocab, merges, true))
}
