package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

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

// addedTokens are the added tokens of a vocabulary.
type addedTokens struct {
	raw, normalized matcher           // of those that are searched before and after normalization
	spelled         map[uint32]string // by id
	inText          map[uint32]string // of tokens that the normalizer changes: the text that is searched, and the one that is decoded
}

// newAddedTokens checks the added tokens against the vocabulary. It returns how many tokens there are in all.
func newAddedTokens(list []addedToken, v *vocabulary, n normalizer) (t addedTokens, size int, err error) {
	all := make(map[string]uint32, len(v.ids)+len(list))
	for s, id := range v.ids {
		all[s] = id
	}
	t.spelled, t.inText = make(map[uint32]string, len(list)), map[uint32]string{}
	for _, a := range list {
		switch have, ok := all[a.Content]; {
		case a.Content == "":
			return t, 0, fmt.Errorf("id %d has an empty content", a.ID)
		case a.ID < 0 || a.ID > 1<<31-1:
			return t, 0, fmt.Errorf("%q: id is %d: expected 0 to 2^31-1", a.Content, a.ID)
		case ok && int64(have) != a.ID:
			return t, 0, fmt.Errorf("%q has id %d: elsewhere it has id %d", a.Content, a.ID, have)
		}
		if _, dup := t.spelled[uint32(a.ID)]; dup {
			return t, 0, fmt.Errorf("id %d is listed twice", a.ID)
		}
		all[a.Content], t.spelled[uint32(a.ID)] = uint32(a.ID), a.Content
	}
	tokens, err := byID(all)
	if err != nil {
		return t, 0, err
	}
	err = t.search(list, n)
	return t, len(tokens), err
}

// search fills the matchers of texts and of normalized texts.
func (t *addedTokens) search(list []addedToken, normalize normalizer) error {
	searched := map[string]string{} // the token that is searched as a normalized text
	for _, a := range list {
		if !a.Normalized {
			t.raw.add(a, a.Content)
			continue
		}
		p, err := fragment{text: a.Content}, error(nil)
		if normalize != nil {
			if p, err = normalize(p); err != nil {
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

// id is the id of the added token with a spelling.
func (t *addedTokens) id(name string) (uint32, bool) {
	for id, s := range t.spelled {
		if s == name {
			return id, true
		}
	}
	return 0, false
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
