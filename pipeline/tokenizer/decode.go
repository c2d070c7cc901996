package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder rewrites the spelling of tokens; what it returns is joined.
type decoder func(tokens []string) ([]string, error)

func parseDecoder(raw json.RawMessage) (decoder, error) {
	if isNull(raw) {
		return func(tokens []string) ([]string, error) { return []string{strings.Join(tokens, " ")}, nil }, nil
	}
	return parseDecoderAt(raw, 0)
}

// each makes a decoder of what is done to single tokens.
func each(f func(s string, i, n int) string) decoder {
	return func(tokens []string) ([]string, error) {
		out := make([]string, len(tokens))
		for i, s := range tokens {
			out[i] = f(s, i, len(tokens))
		}
		return out, nil
	}
}

func parseDecoderAt(raw json.RawMessage, depth int) (decoder, error) {
	c, err := parseComponent(raw, depth)
	if err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		return decoderSequence(c.Decoders, depth)
	case "ByteLevel":
		return each(func(s string, _, _ int) string { return byteLevelText(s) }), nil
	case "ByteFallback":
		return each(func(s string, _, _ int) string { return fallbackText(s) }), nil
	case "Fuse":
		return func(tokens []string) ([]string, error) { return []string{strings.Join(tokens, "")}, nil }, nil
	case "Replace":
		find, err := c.Pattern.compile()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Type, err)
		}
		return func(tokens []string) ([]string, error) {
			out := make([]string, len(tokens))
			for i, s := range tokens {
				var err error
				if out[i], err = replaceAll(find, s, c.Content); err != nil {
					return nil, err
				}
			}
			return out, nil
		}, nil
	case "Strip":
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
			return nil, fmt.Errorf("%s: content %q, start %d, stop %d: expected one character and two counts", c.Type, c.Content, c.Start, c.Stop)
		}
		return each(func(s string, _, _ int) string { return strip(s, c.Content, c.Start, c.Stop) }), nil
	case "Metaspace":
		return metaspaceDecoder(c)
	case "WordPiece":
		if c.Prefix == nil || c.Cleanup == nil {
			return nil, fmt.Errorf("%s: expected prefix and cleanup", c.Type)
		}
		return wordPieceText(*c.Prefix, *c.Cleanup), nil
	case "BPEDecoder":
		suffix := "</w>"
		if c.Suffix != nil {
			suffix = *c.Suffix
		}
		if suffix == "" {
			return nil, fmt.Errorf("BPEDecoder: an empty suffix")
		}
		return each(func(s string, i, n int) string {
			if i == n-1 {
				return strings.ReplaceAll(s, suffix, "")
			}
			return strings.ReplaceAll(s, suffix, " ")
		}), nil
	}
	return nil, fmt.Errorf("type %q is not supported: expected Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace or BPEDecoder", c.Type)
}

func decoderSequence(raw []json.RawMessage, depth int) (decoder, error) {
	var list []decoder
	for i, r := range raw {
		d, err := parseDecoderAt(r, depth+1)
		if err != nil {
			return nil, fmt.Errorf("number %d: %w", i, err)
		}
		list = append(list, d)
	}
	return func(tokens []string) ([]string, error) {
		var err error
		for _, d := range list {
			if tokens, err = d(tokens); err != nil {
				return nil, err
			}
		}
		return tokens, nil
	}, nil
}

// byteLevelText reads GPT-2's alphabet; a token that has other characters stands for itself.
func byteLevelText(s string) string {
	if raw, ok := fromAlphabet(s); ok {
		return raw
	}
	return s
}

// fallbackText is the byte that a token "<0xXX>" stands for, or the token.
func fallbackText(s string) string {
	if len(s) == 6 && strings.HasPrefix(s, "<0x") && s[5] == '>' {
		if b, err := strconv.ParseUint(s[3:5], 16, 8); err == nil {
			return string([]byte{byte(b)})
		}
	}
	return s
}

func strip(s, char string, start, stop int) string {
	for ; start > 0 && strings.HasPrefix(s, char); start-- {
		s = s[len(char):]
	}
	for ; stop > 0 && strings.HasSuffix(s, char); stop-- {
		s = s[:len(s)-len(char)]
	}
	return s
}

func metaspaceDecoder(c component) (decoder, error) {
	p, err := newMetaspace(c)
	if err != nil {
		return nil, err
	}
	m := p.(metaspace)
	return each(func(s string, i, _ int) string {
		if i == 0 && m.scheme != "never" {
			return strings.ReplaceAll(s, m.mark, "")
		}
		return strings.ReplaceAll(s, m.mark, " ")
	}), nil
}
