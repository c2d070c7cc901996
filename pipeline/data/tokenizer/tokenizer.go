// Package tokenizer turns text into token ids and back: raw bytes, GPT-2's BPE, every Hugging Face tokenizer.json whose
// model is known, SentencePiece's tokenizer.model, vocab.json with merges.txt, tiktoken's files of ranks, Mistral's
// tekken.json, and the tokenizers of GGUF files.
package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/placeholder"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
)

// Tokenizer maps text to token ids in [0, VocabSize). It is safe for concurrent use, and the same text
// always gives the same ids.
//
// Special and added tokens that are spelled out in a text become their own ids, as in Hugging Face's library;
// no token is added (what that library calls add_special_tokens=False). A Framing changes both for documents.
type Tokenizer interface {
	// Name is how the user named it: "bytes", "gpt2" or a path.
	Name() string
	// VocabSize is the largest id plus one: the rows that an embedding needs.
	VocabSize() int
	// Encode returns the ids of a whole document.
	Encode(text []byte) ([]uint32, error)
	// EncodePart encodes a piece of a longer document. For a piece that is not the first, whatever the tokenizer puts
	// in front of a document (Llama-2's leading space) is left out.
	EncodePart(text []byte, first bool) ([]uint32, error)
	// Decode returns the text of ids; an id outside the vocabulary is an error.
	Decode(ids []uint32) ([]byte, error)
	// EOS is the token that is written after a document, if there is one: RoleEOS of Special.
	EOS() (uint32, bool)
	// Special is what belongs to the tokenizer besides the tokens of texts.
	Special() *Special
	// Hash identifies the vocabulary and its rules ("sha256:…").
	Hash() string
	// JSON is the content of a Hugging Face tokenizer.json that encodes alike.
	JSON() []byte
}

// File is the name of Hugging Face's tokenizer files.
const File = "tokenizer.json"

// Notes are for the user: what the files of a tokenizer leave open, or what transformers reads in another way.
func Notes(t Tokenizer) []string {
	if framed, ok := t.(*Framed); ok {
		t = framed.Tokenizer
	}
	if f, ok := t.(*fileTokenizer); ok {
		return f.notes
	}
	return nil
}

// VocabSize returns the VocabSize of the tokenizer that spec names. It opens only those that are files.
func VocabSize(spec string) (int, error) {
	switch spec {
	case "bytes":
		return byteTokenizer{}.VocabSize(), nil
	case "gpt2":
		return gpt2Tokens, nil
	}
	t, err := Open(spec)
	if err != nil {
		return 0, err
	}
	return t.VocabSize(), nil
}

// BuiltIn reports whether spec names a tokenizer of this program rather than a file.
func BuiltIn(spec string) bool { return spec == "bytes" || spec == "gpt2" }

// gpt2Tokens is the number of ids of GPT-2's tokenizer.
const gpt2Tokens = 50257

// Open returns the tokenizer that spec names: "bytes" (256 ids, one a byte), "gpt2" (50,257 ids), or the path of a file
// of a tokenizer (tokenizer.json, SentencePiece's or tiktoken's tokenizer.model, *.tiktoken, tekken.json, vocab.json or
// merges.txt), of the folder that one is in, of a GGUF file, or what hub.Locate takes for one of these.
func Open(spec string) (Tokenizer, error) {
	switch spec {
	case "":
		return nil, errors.New(`tokenizer: no name given: expected "bytes", "gpt2", a tokenizer.json, a tokenizer.model or its folder`)
	case "bytes":
		return byteTokenizer{}, nil
	case "gpt2":
		return openGPT2()
	}
	spec, err := find(spec)
	if err != nil {
		return nil, err
	}
	if gguf.IsFile(spec) {
		return openGGUF(spec)
	}
	st, err := os.Stat(spec)
	classed := err == nil && st.IsDir()
	if classed {
		if spec, err = fileIn(spec); err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
	}
	d, err := describe(filepath.Dir(spec))
	if err != nil {
		return nil, err
	}
	data, err := readFormat(spec, classed, &d)
	if err != nil {
		return nil, err
	}
	t, err := parse(spec, data, d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", spec, err)
	}
	return t, nil
}

// find returns what In does of the folder that a path names, or the file that it names.
func find(spec string) (path string, err error) {
	if path, err = userpath.Expand(spec); err == nil {
		path, err = hub.Locate(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf(`tokenizer %q: no such file or folder, and not "bytes" or "gpt2"`, spec)
	}
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w", err)
	}
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		return path, nil // whoever opens the file reports the error
	}
	folder := path
	switch path, err = In(folder); {
	case err != nil:
		return "", fmt.Errorf("tokenizer: %w", err)
	case path == "":
		return "", fmt.Errorf("tokenizer %q: found %s in the folder, expected %s", folder, hub.Contents(folder), Names())
	}
	return path, nil
}

func openGGUF(path string) (Tokenizer, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	data, d, err := fromGGUF(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	t, err := parse(path, data, d)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	return t, nil
}

// CheckRows returns an error if a tokenizer has tokens for which a model of so many rows has none. It names the first
// one.
func CheckRows(t Tokenizer, rows int) error {
	for id := rows; id < t.VocabSize(); id++ {
		text, err := t.Decode([]uint32{uint32(id)})
		if err != nil {
			return err
		}
		if len(text) > 0 || id == t.VocabSize()-1 { // no id that is not used
			return fmt.Errorf("the tokenizer %q has %d tokens, but the model has rows for %d: token %d, %q, has none", t.Name(),
				t.VocabSize(), rows, id, text)
		}
	}
	return nil
}

// In returns what Open takes for the tokenizer in a folder: the path of its file, or the folder where files beside a
// tokenizer.json or a tokenizer.model say how it is read. It is empty if there is none. A GGUF file has one itself.
func In(folder string) (path string, err error) {
	if gguf.IsFile(folder) {
		return folder, nil
	}
	if path, err = fileIn(folder); err != nil || path == "" {
		return path, err
	}
	classed, err := hasClass(path)
	if classed {
		return folder, err
	}
	return path, err
}

// maxFile bounds the bytes of a tokenizer; the largest in use are below 40 MB.
const maxFile = 256 << 20

func readLimited(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file: expected a tokenizer.json or tokenizer.model", path)
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes: expected a tokenizer of at most %d", path, st.Size(), limit)
	}
	data, err := os.ReadFile(path)
	if found := placeholder.CheckBytes(data); found != nil && err == nil {
		return nil, fmt.Errorf("%s: %w", path, found)
	}
	return data, err
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// byteTokenizer has one id for each byte value and no special tokens.
type byteTokenizer struct{}

func (byteTokenizer) Name() string        { return "bytes" }
func (byteTokenizer) VocabSize() int      { return 256 }
func (byteTokenizer) EOS() (uint32, bool) { return 0, false }
func (byteTokenizer) Special() *Special   { return &Special{} }
func (t byteTokenizer) Hash() string      { return hashOf(t.JSON()) }

func (byteTokenizer) Encode(text []byte) ([]uint32, error) {
	ids := make([]uint32, len(text))
	for i, b := range text {
		ids[i] = uint32(b)
	}
	return ids, nil
}

func (t byteTokenizer) EncodePart(text []byte, _ bool) ([]uint32, error) { return t.Encode(text) }

func (byteTokenizer) Decode(ids []uint32) ([]byte, error) {
	out := make([]byte, len(ids))
	for i, id := range ids {
		if id > 255 {
			return nil, fmt.Errorf("tokenizer bytes: token %d at position %d is outside the vocabulary of 256", id, i)
		}
		out[i] = byte(id)
	}
	return out, nil
}

// JSON is a byte-level BPE without merges whose ids are the byte values.
func (byteTokenizer) JSON() []byte {
	vocab := make([]string, 256)
	for b := range vocab {
		vocab[b] = byteChars[b]
	}
	return byteLevelJSON(vocab, nil, nil, false)
}
