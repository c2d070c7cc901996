package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// newBertNormalizer returns BERT's normalizer: it removes control characters, writes spaces around Chinese characters,
// and removes accents and capital letters, each if the file says so.
func newBertNormalizer(p part) (normalizer, error) {
	var fields struct {
		CleanText    bool  `json:"clean_text"`
		ChineseChars bool  `json:"handle_chinese_chars"`
		StripAccents *bool `json:"strip_accents"`
		Lowercase    bool  `json:"lowercase"`
	}
	if err := p.read(&fields, "clean_text", "handle_chinese_chars", "lowercase"); err != nil {
		return nil, err
	}
	if fields.StripAccents == nil {
		fields.StripAccents = &fields.Lowercase
	}
	sets := &characters().Sets
	var list []normalizer
	if fields.CleanText {
		list = append(list, byCharacter(cleanText))
	}
	if fields.ChineseChars {
		list = append(list, byCharacter(func(s string) string { return spaced(s, sets.Chinese.has) }))
	}
	if *fields.StripAccents {
		list = append(list, inForm(norm.NFD), byCharacter(func(s string) string { return without(s, sets.Nonspacing.has) }))
	}
	if fields.Lowercase {
		list = append(list, byCharacter(lower))
	}
	return inOrder(list...), nil
}

// cleanText removes control characters and makes white space a space.
func cleanText(s string) string {
	control := characters().Sets.BertControl
	return strings.Map(func(r rune) rune {
		switch {
		case r == 0, r == utf8.RuneError, control.has(r):
			return -1
		case unicode.IsSpace(r):
			return ' '
		}
		return r
	}, s)
}

// spaced writes a space before and after some characters.
func spaced(s string, f func(rune) bool) string {
	var w strings.Builder
	for _, r := range s {
		if f(r) {
			w.WriteByte(' ')
			w.WriteRune(r)
			w.WriteByte(' ')
		} else {
			w.WriteRune(r)
		}
	}
	return w.String()
}

// wordPiece is BERT's model: the longest token that a word begins with, then the longest that goes on, and so on.
type wordPiece struct {
	vocabulary
	unk     uint32
	prefix  string // of tokens that go on
	longest int    // longer words are unknown
}

func parseWordPiece(f modelFile) (*wordPiece, error) {
	if f.Unk == nil || f.Prefix == nil || f.MaxChars == nil {
		return nil, errors.New("expected unk_token, continuing_subword_prefix and max_input_chars_per_word")
	}
	ids, err := parseVocab(f.Vocab)
	if err != nil {
		return nil, err
	}
	m := &wordPiece{vocabulary: vocabulary{ids: ids}, prefix: *f.Prefix, longest: *f.MaxChars}
	id, ok := ids[*f.Unk]
	if !ok {
		return nil, fmt.Errorf("unk_token %q is not in the vocab", *f.Unk)
	}
	m.unk = id
	m.tokens, err = byID(ids)
	return m, err
}

func (m *wordPiece) encode(dst []uint32, word string, s *scratch) ([]uint32, error) {
	if ids, ok := s.cache[word]; ok {
		return append(dst, ids...), nil
	}
	text := word
	if m.byteLevel {
		text = toAlphabet(word)
	}
	start := len(dst)
	dst = m.pieces(dst, text)
	s.remember(word, dst[start:])
	return dst, nil
}

// pieces appends the tokens of a word; the unknown token alone if they do not cover it.
func (m *wordPiece) pieces(dst []uint32, word string) []uint32 {
	start := len(dst)
	if utf8.RuneCountInString(word) > m.longest {
		return append(dst, m.unk)
	}
	for from := 0; from < len(word); {
		prefix := ""
		if from > 0 {
			prefix = m.prefix
		}
		to := len(word)
		for ; to > from; to -= lastLen(word[from:to]) {
			if id, ok := m.ids[prefix+word[from:to]]; ok {
				dst = append(dst, id)
				break
			}
		}
		if to == from {
			return append(dst[:start], m.unk)
		}
		from = to
	}
	return dst
}

// wordLevel is a model whose tokens are whole words.
type wordLevel struct {
	vocabulary
	unk int64 // -1: none
}

func parseWordLevel(f modelFile) (*wordLevel, error) {
	ids, err := parseVocab(f.Vocab)
	if err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	m := &wordLevel{vocabulary: vocabulary{ids: ids}, unk: -1}
	if id, ok := ids[deref(f.Unk)]; ok {
		m.unk = int64(id)
	}
	m.tokens, err = byID(ids)
	return m, err
}

func (m *wordLevel) encode(dst []uint32, word string, _ *scratch) ([]uint32, error) {
	if m.byteLevel {
		word = toAlphabet(word)
	}
	if id, ok := m.ids[word]; ok {
		return append(dst, id), nil
	}
	if m.unk < 0 {
		return nil, fmt.Errorf("the word %q has no token, and the model has no unk_token", word)
	}
	return append(dst, uint32(m.unk)), nil
}

// lastLen is the number of bytes of the last character.
func lastLen(s string) int {
	_, n := utf8.DecodeLastRuneInString(s)
	return n
}

// newWordPieceDecoder joins tokens to words.
func newWordPieceDecoder(p part) (decoder, error) {
	var fields struct {
		Prefix  string `json:"prefix"`
		Cleanup bool   `json:"cleanup"`
	}
	if err := p.read(&fields, "prefix", "cleanup"); err != nil {
		return nil, err
	}
	return each(func(s string, i, _ int) string {
		if rest, ok := strings.CutPrefix(s, fields.Prefix); i > 0 && ok {
			s = rest
		} else if i > 0 {
			s = " " + s
		}
		if fields.Cleanup {
			s = tidy(s)
		}
		return s
	}), nil
}

// tidy removes spaces that English does not have. One rule follows the other.
func tidy(s string) string {
	for _, pair := range [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
		{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}} {
		s = strings.ReplaceAll(s, pair[0], pair[1])
	}
	return s
}
