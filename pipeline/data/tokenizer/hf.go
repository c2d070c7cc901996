package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// fileTokenizer is a tokenizer.json: text → sections between added tokens → normalizer → pre-tokenizer → model.
type fileTokenizer struct {
	name, hash string
	json       []byte
	model      subword
	normalize  normalizer // nil for none
	pre        preTokenizer
	decode     decoder
	special    *Special
	notes      []string // for the user
	restarts   bool     // a line break is a space: a piece after one begins as a document does

	raw, normalized matcher           // added tokens searched before and after normalization
	added           map[uint32]string // spelling of added tokens, by id
	inText          map[uint32]string // of tokens that the normalizer changes: the text that is searched, and the one that is decoded
	size            int
	text            []string // with a ByteLevel decoder: the bytes of each id

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
	for _, sec := range t.raw.cut(whole.text) {
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
		for _, sec := range t.normalized.cut(p.text) {
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
	if s, ok := t.added[id]; ok {
		return s
	}
	if v := t.model.vocab(); int(id) < len(v.tokens) {
		return v.tokens[id]
	}
	return ""
}

// decoded is what a decoder gets of a token; false in a hole.
func (t *fileTokenizer) decoded(id uint32) (string, bool) {
	if s, ok := t.inText[id]; ok {
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

// addedToken is a token that is found in the text before any other rule applies.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// add checks the added tokens against the vocabulary and sets size.
func (t *fileTokenizer) add(list []addedToken) error {
	ids := t.model.vocab().ids
	all := make(map[string]uint32, len(ids)+len(list))
	for s, id := range ids {
		all[s] = id
	}
	t.added, t.inText = make(map[uint32]string, len(list)), map[uint32]string{}
	for _, a := range list {
		switch have, ok := all[a.Content]; {
		case a.Content == "":
			return fmt.Errorf("id %d has an empty content", a.ID)
		case a.ID < 0 || a.ID > 1<<31-1:
			return fmt.Errorf("%q: id is %d: expected 0 to 2^31-1", a.Content, a.ID)
		case ok && int64(have) != a.ID:
			return fmt.Errorf("%q has id %d: elsewhere it has id %d", a.Content, a.ID, have)
		}
		if _, dup := t.added[uint32(a.ID)]; dup {
			return fmt.Errorf("id %d is listed twice", a.ID)
		}
		all[a.Content], t.added[uint32(a.ID)] = uint32(a.ID), a.Content
	}
	tokens, err := byID(all)
	if err != nil {
		return err
	}
	t.size = len(tokens)
	searched := map[string]string{} // the token that is searched as a normalized text
	for _, a := range list {
		if !a.Normalized {
			t.raw.add(a, a.Content)
			continue
		}
		p := fragment{text: a.Content}
		if t.normalize != nil {
			if p, err = t.normalize(p); err != nil {
				return fmt.Errorf("%q: %w", a.Content, err)
			}
		}
		if p.text == "" {
			return fmt.Errorf("%q is nothing after the normalizer: expected characters, or a token that is not normalized", a.Content)
		}
		if other, ok := searched[p.text]; ok { // Hugging Face's library takes any of the two
			return fmt.Errorf("%q and %q are both %q after the normalizer", other, a.Content, p.text)
		}
		searched[p.text] = a.Content
		if p.text != a.Content {
			t.inText[uint32(a.ID)] = p.text
		}
		t.normalized.add(a, p.text)
	}
	return nil
}

// checkNumbers refuses added tokens that Hugging Face's library numbers otherwise: it takes the id of the vocabulary,
// or else the next one.
func checkNumbers(list []addedToken, v *vocabulary) error {
	next := int64(nextID(nil, v))
	for _, a := range list {
		if _, known := v.ids[a.Content]; !known && a.Content != "" {
			if a.ID != next {
				return fmt.Errorf("%q has id %d, but Hugging Face's library numbers added tokens without gaps, and gives it %d",
					a.Content, a.ID, next)
			}
			next++
		}
	}
	return nil
}

func (t *fileTokenizer) addedID(name string) (uint32, bool) {
	for id, s := range t.added {
		if s == name {
			return id, true
		}
	}
	return 0, false
}

// matcher finds added tokens, leftmost first and the longest of those that begin at one place.
type matcher struct {
	byFirst [256][]addedToken // by first byte; longest first
	any     bool
	asText  bool // special tokens are found, but are text
}

func (m *matcher) add(a addedToken, content string) {
	if content == "" {
		return
	}
	a.Content = content
	list := append(m.byFirst[content[0]], a)
	slices.SortStableFunc(list, func(a, b addedToken) int { return len(b.Content) - len(a.Content) })
	m.byFirst[content[0]], m.any = list, true
}

// section is a stretch of text, or an added token (id ≥ 0).
type section struct {
	from, to int
	id       int64
}

// cut finds sections as Hugging Face's library does: white space that a token takes with it is searched all the same.
func (m *matcher) cut(s string) []section {
	if s == "" {
		return nil
	}
	if !m.any {
		return []section{{0, len(s), -1}}
	}
	var out []section
	done := 0 // text before is in out
	for i := 0; i < len(s); {
		a := m.at(s[i:])
		if a == nil {
			i++
			continue
		}
		from, to := i, i+len(a.Content)
		i = to
		if m.asText && a.Special || a.SingleWord && (endsWord(s[:from]) || beginsWord(s[to:])) {
			continue
		}
		if a.LStrip {
			from = max(done, len(strings.TrimRightFunc(s[:from], unicode.IsSpace)))
		}
		if a.RStrip {
			to = len(s) - len(strings.TrimLeftFunc(s[to:], unicode.IsSpace))
		}
		if from > done {
			out = append(out, section{done, from, -1})
		}
		if from < to { // a token that is white space may be taken already
			out = append(out, section{from, to, a.ID})
		}
		done = to
	}
	if done < len(s) {
		out = append(out, section{done, len(s), -1})
	}
	return out
}

func (m *matcher) at(s string) *addedToken {
	list := m.byFirst[s[0]]
	for i := range list {
		if strings.HasPrefix(s, list[i].Content) {
			return &list[i]
		}
	}
	return nil
}

func endsWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func beginsWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

func isWord(r rune) bool { return characters().Sets.Word.has(r) }
