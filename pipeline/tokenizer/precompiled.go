package tokenizer

import (
	"encoding/base64"
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

// parseCharsMap reads a charsMap in base64.
func parseCharsMap(text string) (*charsMap, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	return newCharsMap(data)
}

// shortest returns the replacement of the shortest string in the map that s begins with.
func (m *charsMap) shortest(s string) (string, bool) {
	unit := m.trie[0]
	at := offsetOf(unit)
	for i := range len(s) {
		if s[i] == 0 {
			return "", false
		}
		if at ^= uint32(s[i]); int64(at) >= int64(len(m.trie)) {
			return "", false
		}
		if unit = m.trie[at]; unit&(1<<31|0xFF) != uint32(s[i]) { // the label
			return "", false
		}
		at ^= offsetOf(unit)
		if unit>>8&1 == 0 { // no string ends here
			continue
		}
		if int64(at) >= int64(len(m.trie)) {
			return "", false
		}
		value := m.trie[at] & (1<<31 - 1)
		if int64(value) >= int64(len(m.replacements)) {
			return "", false
		}
		text, _, _ := strings.Cut(m.replacements[value:], "\x00")
		return text, true
	}
	return "", false
}

// offsetOf is the distance from a unit of the trie to its children.
func offsetOf(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// normalize replaces short grapheme clusters as a whole, by their shortest prefix in the map, and else single
// characters, as Hugging Face's implementation does. SentencePiece takes the longest prefix instead.
func (m *charsMap) normalize(s string) string {
	var w strings.Builder
	for clusters := graphemes.FromString(s); clusters.Next(); {
		cluster := clusters.Value()
		if len(cluster) < 6 {
			if text, ok := m.shortest(cluster); ok {
				w.WriteString(text)
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
			cluster = cluster[n:]
		}
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
