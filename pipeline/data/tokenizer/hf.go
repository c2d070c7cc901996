package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// fileTokenizer is a tokenizer.json: text → sections between added tokens → normalizer → pre-tokenizer → model.
type fileTokenizer struct {
	name, hash string
	json       []byte
	added      addedTokens
	model      subword
	normalize  normalizer // nil for none
	pre        preTokenizer
	decode     decoder
	special    *Special
	notes      []string // for the user
	restarts   bool     // a line break is a space: a piece after one begins as a document does
	size       int
	text       []string // with a ByteLevel decoder: the bytes of each id

	pool sync.Pool // of *scratch
}

func (t *fileTokenizer) Name() string   { return t.name }
func (t *fileTokenizer) VocabSize() int { return t.size }
func (t *fileTokenizer) Hash() string   { return t.hash }
func (t *fileTokenizer) JSON() []byte   { return slices.Clone(t.json) }
func (t *fileTokenizer) EOS() (uint32, bool) {
	return t.special.ID(RoleEOS)
}
func (t *fileTokenizer) Special() *Special { return t.special }

func (t *fileTokenizer) Encode(text []byte) ([]uint32, error) { return t.EncodePart(text, true) }

func (t *fileTokenizer) EncodePart(text []byte, first bool) ([]uint32, error) {
	return t.encode(text, first || t.restarts)
}

// findRestarts compares the two ways to encode a piece that follows a line break with what the whole text gives.
func (t *fileTokenizer) findRestarts() {
	parts := func(first bool) []uint32 {
		before, err := t.encode([]byte("a\n"), true)
		after, err2 := t.encode([]byte("a"), first)
		if err != nil || err2 != nil {
			return nil
		}
		return append(before, after...)
	}
	whole, err := t.encode([]byte("a\na"), true)
	t.restarts = err == nil && slices.Equal(whole, parts(true)) && !slices.Equal(whole, parts(false))
}

func (t *fileTokenizer) encode(text []byte, first bool) ([]uint32, error) {
	s, _ := t.pool.Get().(*scratch)
	if s == nil {
		s = &scratch{cache: map[string][]uint32{}}
	}
	defer t.pool.Put(s)
	ids := make([]uint32, 0, len(text)/3+1)
	whole := fragment{text: string(text), bare: !first}
	if first {
		whole.front = charLen(whole.text)
	}
	for _, sec := range t.added.raw.cut(whole.text) {
		if sec.id >= 0 {
			ids = append(ids, uint32(sec.id))
			continue
		}
		p, err := whole.slice(sec.from, sec.to), error(nil)
		if t.normalize != nil {
			if p, err = t.normalize(p); err != nil {
				return nil, fmt.Errorf("tokenizer %s: normalizer: %w", t.name, err)
			}
		}
		for _, sec := range t.added.normalized.cut(p.text) {
			if sec.id >= 0 {
				ids = append(ids, uint32(sec.id))
			} else if ids, err = t.section(ids, p.slice(sec.from, sec.to), s); err != nil {
				return nil, fmt.Errorf("tokenizer %s: %w", t.name, err)
			}
		}
	}
	return ids, nil
}

func (t *fileTokenizer) section(ids []uint32, p fragment, s *scratch) ([]uint32, error) {
	words, err := t.pre.cut(nil, p)
	if err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	for _, w := range words {
		if ids, err = t.model.encode(ids, w.text, s); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
	}
	return ids, nil
}

// byteDecoded prepares the bytes of each id where a token's bytes do not depend on its neighbors.
func (t *fileTokenizer) byteDecoded(decoder json.RawMessage) {
	if p, err := readPart(decoder, 0); err != nil || p.Type != "ByteLevel" {
		return
	}
	t.text = make([]string, t.size)
	for id := range t.text {
		s, _ := t.decoded(uint32(id))
		t.text[id] = byteLevelText(s)
	}
}

// spelling is a token as the vocabulary writes it; "" in a hole.
func (t *fileTokenizer) spelling(id uint32) string {
	if s, ok := t.added.spelled[id]; ok {
		return s
	}
	if v := t.model.vocab(); int(id) < len(v.tokens) {
		return v.tokens[id]
	}
	return ""
}

// decoded is what a decoder gets of a token; false in a hole.
func (t *fileTokenizer) decoded(id uint32) (string, bool) {
	if s, ok := t.added.inText[id]; ok {
		return s, true
	}
	s := t.spelling(id)
	if s == "" {
		empty, ok := t.model.vocab().ids[""]
		return s, ok && empty == id
	}
	return s, true
}

func (t *fileTokenizer) Decode(ids []uint32) ([]byte, error) {
	var tokens []string
	for i, id := range ids {
		if int64(id) >= int64(t.size) {
			return nil, fmt.Errorf("tokenizer %s: token %d at position %d is outside the vocabulary of %d", t.name, id, i, t.size)
		}
		if t.text != nil {
			tokens = append(tokens, t.text[id])
		} else if s, ok := t.decoded(id); ok {
			tokens = append(tokens, s)
		}
	}
	if t.text == nil {
		var err error
		if tokens, err = t.decode(tokens); err != nil {
			return nil, fmt.Errorf("tokenizer %s: decoder: %w", t.name, err)
		}
	}
	return []byte(strings.Join(tokens, "")), nil
}
