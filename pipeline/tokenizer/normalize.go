package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/gpupipe/gpupipe/internal/oniguruma"
)

// component is any of the tagged objects that a normalizer, pre_tokenizer or decoder is made of.
type component struct {
	Type string `json:"type"`

	Normalizers   []json.RawMessage `json:"normalizers"`
	Pretokenizers []json.RawMessage `json:"pretokenizers"`
	Decoders      []json.RawMessage `json:"decoders"`

	Prepend          string   `json:"prepend"`
	Pattern          *pattern `json:"pattern"`
	Content          string   `json:"content"`
	StripLeft        bool     `json:"strip_left"`
	StripRight       bool     `json:"strip_right"`
	Start            int      `json:"start"`
	Stop             int      `json:"stop"`
	Behavior         string   `json:"behavior"`
	Invert           bool     `json:"invert"`
	IndividualDigits bool     `json:"individual_digits"`
	AddPrefixSpace   *bool    `json:"add_prefix_space"`
	UseRegex         *bool    `json:"use_regex"`
	Replacement      string   `json:"replacement"`
	PrependScheme    string   `json:"prepend_scheme"`
	Split            *bool    `json:"split"`
	Suffix           *string  `json:"suffix"`
	CharsMap         string   `json:"precompiled_charsmap"`
	Prefix           *string  `json:"prefix"`
	Cleanup          *bool    `json:"cleanup"`
	Longest          bool     `json:"longest"` // gpupipe's own: SentencePiece's rule
	Delimiter        string   `json:"delimiter"`
	Length           *int     `json:"length"`
	CleanText        *bool    `json:"clean_text"`
	ChineseChars     *bool    `json:"handle_chinese_chars"`
	StripAccents     *bool    `json:"strip_accents"`
	Lowercase        *bool    `json:"lowercase"`
}

// maxDepth bounds Sequences within Sequences.
const maxDepth = 8

func parseComponent(raw json.RawMessage, depth int) (c component, err error) {
	if depth > maxDepth {
		return c, fmt.Errorf("a Sequence nested more than %d deep", maxDepth)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, jsonError(err)
	}
	return c, nil
}

// pattern is {"String": "…"} or {"Regex": "…"}.
type pattern struct {
	String *string
	Regex  *string
}

// finder returns the non-overlapping matches in s as pairs of byte offsets, in order.
type finder func(s string) ([][]int, error)

func (p *pattern) compile() (finder, error) {
	switch {
	case p == nil || (p.String == nil) == (p.Regex == nil):
		return nil, errors.New(`pattern: expected {"String": …} or {"Regex": …}`)
	case p.String != nil:
		if *p.String == "" {
			return nil, errors.New("pattern: an empty string")
		}
		return func(s string) ([][]int, error) { return findLiteral(s, *p.String), nil }, nil
	}
	return regexFinder(*p.Regex)
}

// regexFinder compiles a pattern in Oniguruma's syntax, which Hugging Face's tokenizers uses.
func regexFinder(expr string) (finder, error) {
	re, err := oniguruma.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", expr, err)
	}
	return func(s string) ([][]int, error) {
		found, err := re.FindAll(s)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", expr, err)
		}
		return found, nil
	}, nil
}

func findLiteral(s, lit string) (found [][]int) {
	for at := 0; ; {
		i := strings.Index(s[at:], lit)
		if i < 0 {
			return found
		}
		found = append(found, []int{at + i, at + i + len(lit)})
		at += i + len(lit)
	}
}

func replaceAll(find finder, s, with string) (string, error) {
	found, err := find(s)
	if err != nil || len(found) == 0 {
		return s, err
	}
	var w strings.Builder
	at := 0
	for _, m := range found {
		w.WriteString(s[at:m[0]])
		w.WriteString(with)
		at = m[1]
	}
	w.WriteString(s[at:])
	return w.String(), nil
}

// normalizer rewrites a section of text. If continued, the section is inside a document and gets no prefix.
type normalizer func(s string, continued bool) (string, error)

func parseNormalizer(raw json.RawMessage) (normalizer, error) { return parseNormalizerAt(raw, 0) }

func parseNormalizerAt(raw json.RawMessage, depth int) (normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	c, err := parseComponent(raw, depth)
	if err != nil {
		return nil, err
	}
	plain := func(f func(string) string) (normalizer, error) {
		return func(s string, _ bool) (string, error) { return f(s), nil }, nil
	}
	switch c.Type {
	case "Sequence":
		return normalizerSequence(c.Normalizers, depth)
	case "Prepend":
		return func(s string, continued bool) (string, error) {
			if continued || s == "" {
				return s, nil
			}
			return c.Prepend + s, nil
		}, nil
	case "Replace":
		find, err := c.Pattern.compile()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Type, err)
		}
		return func(s string, _ bool) (string, error) { return replaceAll(find, s, c.Content) }, nil
	case "Precompiled":
		m, err := parseCharsMap(c.CharsMap)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Type, err)
		}
		if c.Longest {
			return plain(m.normalizeLongest)
		}
		return plain(m.normalize)
	case "Nmt":
		return plain(neuralTranslation)
	case "StripAccents":
		return plain(func(s string) string { return without(s, characters().Sets.Mark.has) })
	case "NFC":
		return plain(normalForm(norm.NFC))
	case "NFD":
		return plain(normalForm(norm.NFD))
	case "NFKC":
		return plain(normalForm(norm.NFKC))
	case "NFKD":
		return plain(normalForm(norm.NFKD))
	case "BertNormalizer":
		return newBertNormalizer(c)
	case "ByteLevel":
		return plain(toAlphabet)
	case "Lowercase":
		return plain(lower)
	case "Strip":
		return plain(func(s string) string {
			if c.StripLeft {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if c.StripRight {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		})
	}
	return nil, fmt.Errorf("type %q is not supported: expected Sequence, Prepend, Replace, Precompiled, NFC, NFD, NFKC, NFKD, Nmt, StripAccents, Lowercase, BertNormalizer, ByteLevel or Strip", c.Type)
}

func normalizerSequence(raw []json.RawMessage, depth int) (normalizer, error) {
	var list []normalizer
	for i, r := range raw {
		n, err := parseNormalizerAt(r, depth+1)
		if err != nil {
			return nil, fmt.Errorf("number %d: %w", i, err)
		}
		if n != nil {
			list = append(list, n)
		}
	}
	return func(s string, continued bool) (string, error) {
		var err error
		for _, n := range list {
			if s, err = n(s, continued); err != nil {
				return "", err
			}
		}
		return s, nil
	}, nil
}
