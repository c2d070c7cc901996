package tokenizer

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Report is how a tokenizer treats texts.
type Report struct {
	Pieces    int64  `json:"pieces"` // texts, long ones in several pieces
	Bytes     int64  `json:"bytes"`
	Words     int64  `json:"words"` // runs of characters that are no space
	Tokens    int64  `json:"tokens"`
	Used      int    `json:"used_tokens"` // different tokens
	Unknown   int64  `json:"unknown"`
	Different int64  `json:"different"`            // pieces that decode as another text
	First     string `json:"difference,omitempty"` // where the first of them differs

	used map[uint32]bool
}

// Add encodes and decodes a text. first reports whether it begins its document.
func (r *Report) Add(t Tokenizer, text []byte, first bool) error {
	ids, err := t.EncodePart(text, first)
	if err != nil {
		return err
	}
	back, err := t.Decode(ids)
	if err != nil {
		return err
	}
	unknown, has := Unknown(t)
	if r.used == nil {
		r.used = map[uint32]bool{}
	}
	for _, id := range ids {
		r.used[id] = true
		if has && id == unknown {
			r.Unknown++
		}
	}
	r.Pieces, r.Bytes, r.Words, r.Tokens, r.Used = r.Pieces+1, r.Bytes+int64(len(text)), r.Words+words(text), r.Tokens+int64(len(ids)),
		len(r.used)
	if !bytes.Equal(back, text) {
		if r.Different++; r.Different == 1 {
			r.First = difference(text, back)
		}
	}
	return nil
}

// Fertility is the mean number of tokens of a word.
func (r Report) Fertility() float64 { return float64(r.Tokens) / float64(max(r.Words, 1)) }

// BytesPerToken is the mean length of a token's text.
func (r Report) BytesPerToken() float64 { return float64(r.Bytes) / float64(max(r.Tokens, 1)) }

// Unknown returns the token that stands for text that has no token, if there is one.
func Unknown(t Tokenizer) (uint32, bool) {
	f, ok := t.(*fileTokenizer)
	if !ok {
		return 0, false
	}
	unk := int64(-1)
	switch m := f.model.(type) {
	case *bpe:
		unk = m.unk
	case *unigram:
		unk = m.unk
	}
	return uint32(max(unk, 0)), unk >= 0
}

func words(text []byte) (n int64) {
	inside := false
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		space := unicode.IsSpace(r)
		if !space && !inside {
			n++
		}
		inside = !space
		i += size
	}
	return n
}

// difference shows the first place where two texts differ.
func difference(text, back []byte) string {
	at := 0
	for at < len(text) && at < len(back) && text[at] == back[at] {
		at++
	}
	excerpt := func(b []byte) []byte { return b[max(at-10, 0):min(at+20, len(b))] }
	return fmt.Sprintf("byte %d: %q becomes %q", at, excerpt(text), excerpt(back))
}
