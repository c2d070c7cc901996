package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// hasClass reports whether the file that fileIn has found is a SentencePiece model that a class of transformers reads.
func hasClass(path string) bool {
	if filepath.Base(path) != SentencePieceFile {
		return false
	}
	_, err := os.Stat(filepath.Join(filepath.Dir(path), ConfigFile))
	return err == nil
}

// readFormat reads the file of a tokenizer, of any format but GGUF, as the content of a tokenizer.json. d is what files
// beside it say; readFormat adds what the format defines. classed: a SentencePiece model is read by the class that its
// folder names.
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
	case classed:
		return fromModelFolder(filepath.Dir(path), data, d)
	case filepath.Ext(base) == filepath.Ext(SentencePieceFile):
		d.searchInText()
		data, err = fromSentencePiece(data)
	default: // transformers takes what is put around a text from tokenizer.json alone
		d.addBOS, d.addEOS = nil, nil
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
	d.added = slices.DeleteFunc(d.added, func(t sideToken) bool { return t.ID < 0 }) // those of roles
	d.addSpecial(from)
}

// byteLevelBPE is a tokenizer.json whose model is a BPE of bytes in GPT-2's alphabet.
type byteLevelBPE struct {
	vocab        map[string]int
	merges       [][2]string
	added        []addedToken
	pattern      string // in Oniguruma's syntax; "": GPT-2's
	nfc          bool
	prefixSpace  bool
	ignoreMerges bool
	post         any // the post-processor
}

func (b byteLevelBPE) json() ([]byte, error) {
	level := object{"type": "ByteLevel", "add_prefix_space": b.prefixSpace, "trim_offsets": true, "use_regex": b.pattern == ""}
	var pre, normalizer any = level, nil
	if b.pattern != "" {
		split := object{"type": "Split", "pattern": object{"Regex": b.pattern}, "behavior": "Isolated", "invert": false}
		pre = object{"type": "Sequence", "pretokenizers": []any{split, level}}
	}
	if b.nfc {
		normalizer = object{"type": "NFC"}
	}
	if b.added == nil {
		b.added = []addedToken{}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(object{"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": b.added, "normalizer": normalizer,
		"pre_tokenizer": pre, "post_processor": b.post,
		"decoder": object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": object{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": b.ignoreMerges, "vocab": b.vocab, "merges": b.merges}})
	return out.Bytes(), err
}
