package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/graphemes"
)

// charsMap is SentencePiece's precompiled normalization: a double-array trie (darts-clone) from strings to offsets of
// their NUL-terminated replacements.
type charsMap struct {
	trie         []uint32
	replacements string
}

// newCharsMap reads the size of the trie in bytes, the trie and the replacements.
func newCharsMap(data []byte) (*charsMap, error) {
	if len(data) < 4 {
		return nil, fmt.Errorf("precompiled_charsmap: %d bytes: expected at least 4", len(data))
	}
	size := uint64(binary.LittleEndian.Uint32(data))
	data = data[4:]
	if size%4 != 0 || size == 0 || size > uint64(len(data)) {
		return nil, fmt.Errorf("precompiled_charsmap: a trie of %d bytes, of %d in all: expected a multiple of 4", size, len(data))
	}
	m := &charsMap{replacements: string(data[size:])}
	for i := uint64(0); i < size; i += 4 {
		m.trie = append(m.trie, binary.LittleEndian.Uint32(data[i:]))
	}
	if !utf8.ValidString(m.replacements) {
		return nil, errors.New("precompiled_charsmap: the replacements are not UTF-8")
	}
	return m, nil
}

func newPrecompiled(p part) (normalizer, error) {
	var fields struct {
		CharsMap []byte `json:"precompiled_charsmap"`
		Longest  bool   `json:"longest"` // gpupipe's own: SentencePiece's rule
	}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	m, err := newCharsMap(fields.CharsMap)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Type, err)
	}
	if fields.Longest {
		return byCharacter(m.normalizeLongest), nil
	}
	return func(p fragment) (fragment, error) {
		text, front := m.normalize(p.text, p.front)
		return fragment{text, front, p.bare}, nil
	}, nil
}

// shortest returns the replacement of the shortest string in the map that s begins with.
func (m *charsMap) shortest(s string) (text string, ok bool) {
	m.prefixes(s, func(_ int, replacement string) bool {
		text, ok = replacement, true
		return false
	})
	return text, ok
}

// longest returns the length of the longest string in the map that s begins with, and its replacement.
func (m *charsMap) longest(s string) (length int, text string) {
	m.prefixes(s, func(n int, replacement string) bool {
		length, text = n, replacement
		return true
	})
	return length, text
}

// prefixes calls found with each string in the map that s begins with, the shortest first, until it returns false.
func (m *charsMap) prefixes(s string, found func(length int, replacement string) bool) {
	unit := m.trie[0]
	at := offsetOf(unit)
	for i := range len(s) {
		if s[i] == 0 {
			return
		}
		if at ^= uint32(s[i]); int64(at) >= int64(len(m.trie)) {
			return
		}
		if unit = m.trie[at]; unit&(1<<31|0xFF) != uint32(s[i]) { // the label
			return
		}
		at ^= offsetOf(unit)
		if unit>>8&1 == 0 { // no string ends here
			continue
		}
		if int64(at) >= int64(len(m.trie)) {
			return
		}
		value := m.trie[at] & (1<<31 - 1)
		if int64(value) >= int64(len(m.replacements)) {
			return
		}
		text, _, _ := strings.Cut(m.replacements[value:], "\x00")
		if !found(i+1, text) {
			return
		}
	}
}

// offsetOf is the distance from a unit of the trie to its children.
func offsetOf(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// normalize replaces short grapheme clusters as a whole, by their shortest prefix in the map, and else single
// characters, as Hugging Face's implementation does. SentencePiece takes the longest prefix instead. It also returns
// how many bytes that implementation believes to come from the first front bytes of s.
func (m *charsMap) normalize(s string, front int) (string, int) {
	var w strings.Builder
	origins := origins{rest: s, front: front}
	for clusters := graphemes.FromString(s); clusters.Next(); {
		cluster := clusters.Value()
		if len(cluster) < 6 {
			if text, ok := m.shortest(cluster); ok {
				w.WriteString(text)
				origins.replace(cluster, text)
				continue
			}
		}
		for len(cluster) > 0 {
			_, n := utf8.DecodeRuneInString(cluster)
			text, ok := m.shortest(cluster[:n])
			if !ok {
				text = cluster[:n]
			}
			w.WriteString(text)
			origins.replace(cluster[:n], text)
			cluster = cluster[n:]
		}
	}
	return w.String(), origins.count()
}

// origins follows where characters come from. Hugging Face's implementation counts characters: the first ones that are
// written stand for those that they replace, further ones for the last of these, and characters that are removed
// without another one before them are not counted.
type origins struct {
	rest    string // not replaced yet
	front   int
	written []origin
}

type origin struct{ size, change int }

func (o *origins) replace(old, text string) {
	if o.front == 0 {
		return
	}
	diff := utf8.RuneCountInString(text) - utf8.RuneCountInString(old)
	for _, r := range text {
		o.written = append(o.written, origin{size: utf8.RuneLen(r)})
	}
	for i := range max(diff, 0) {
		o.written[len(o.written)-1-i].change = 1
	}
	if last := len(o.written) - 1; diff < 0 && last >= 0 {
		o.written[last].change += diff
	}
}

func (o *origins) count() (bytes int) {
	at := 0
	for _, c := range o.written {
		from := at
		if c.change > 0 {
			from = at - 1
		}
		if from >= o.front {
			break
		}
		bytes += c.size
		for n := 1 - c.change; n > 0 && at < len(o.rest); n-- {
			at += charLen(o.rest[at:])
		}
	}
	return bytes
}

// normalizeLongest replaces the longest string in the map that the rest of s begins with, as SentencePiece does.
func (m *charsMap) normalizeLongest(s string) string {
	var w strings.Builder
	for len(s) > 0 {
		n, text := m.longest(s)
		if n == 0 {
			n = charLen(s)
			text = s[:n]
		}
		w.WriteString(text)
		s = s[n:]
	}
	return w.String()
}

// neuralTranslation is the normalizer Nmt: it removes control characters and makes white space a space.
func neuralTranslation(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 1 && r <= 8, r == 0x0B, r >= 0x0E && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
			return -1
		case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200B && r <= 0x200F, r == 0x2028, r == 0x2029,
			r == 0x2581, r == 0xFEFF, r == 0xFFFD:
			return ' '
		}
		return r
	}, s)
}
