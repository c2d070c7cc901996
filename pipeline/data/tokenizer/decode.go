package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder rewrites the spelling of tokens; what it returns is joined.
type decoder func(tokens []string) ([]string, error)

func parseDecoder(raw json.RawMessage) (decoder, error) {
	if isNull(raw) {
		return joining(" "), nil
	}
	return parseDecoderAt(raw, 0)
}

// each makes a decoder of a function for single tokens.
func each(f func(s string, i, n int) string) decoder {
	return func(tokens []string) ([]string, error) {
		out := make([]string, len(tokens))
		for i, s := range tokens {
			out[i] = f(s, i, len(tokens))
		}
		return out, nil
	}
}

func decoders() []kind[decoder] {
	return []kind[decoder]{
		{"Sequence", decoderSequence}, {"ByteLevel", always[decoder](byteLevelDecoder)}, {"ByteFallback", always[decoder](fallbackDecoder)},
		{"Fuse", always(joining(""))}, {"Replace", alone(newReplaceDecoder)}, {"Strip", alone(newStripDecoder)},
		{"Metaspace", alone(newMetaspaceDecoder)}, {"WordPiece", alone(newWordPieceDecoder)}, {"BPEDecoder", alone(newBPEDecoder)},
		{"CTC", alone(newCTCDecoder)},
	}
}

// joining joins all tokens.
func joining(separator string) decoder {
	return func(tokens []string) ([]string, error) { return []string{strings.Join(tokens, separator)}, nil }
}

func parseDecoderAt(raw json.RawMessage, depth int) (decoder, error) {
	return parsePart(raw, depth, decoders())
}

func decoderSequence(p part, depth int) (decoder, error) {
	var fields struct {
		Decoders []json.RawMessage `json:"decoders"`
	}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	list, err := parseSequence(fields.Decoders, depth, parseDecoderAt)
	if err != nil {
		return nil, err
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

func newReplaceDecoder(p part) (decoder, error) {
	r, find, err := p.readReplace()
	if err != nil {
		return nil, err
	}
	return func(tokens []string) ([]string, error) {
		out := make([]string, len(tokens))
		for i, s := range tokens {
			if out[i] = s; s == "" {
				continue
			}
			found, err := find(s)
			if err != nil {
				return nil, err
			}
			out[i] = fragment{text: s}.replace(found, r.Content).text
		}
		return out, nil
	}, nil
}

func newStripDecoder(p part) (decoder, error) {
	var fields struct {
		Content string `json:"content"`
		Start   int    `json:"start"`
		Stop    int    `json:"stop"`
	}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if utf8.RuneCountInString(fields.Content) != 1 || fields.Start < 0 || fields.Stop < 0 {
		return nil, fmt.Errorf("%s: content %q, start %d, stop %d: expected one character and two counts", p.Type, fields.Content,
			fields.Start, fields.Stop)
	}
	return each(func(s string, _, _ int) string { return strip(s, fields.Content, fields.Start, fields.Stop) }), nil
}

func newMetaspaceDecoder(p part) (decoder, error) {
	m, err := newMetaspace(p)
	if err != nil {
		return nil, err
	}
	return each(func(s string, i, _ int) string {
		if i == 0 && m.scheme != "never" {
			return strings.ReplaceAll(s, m.mark, "")
		}
		return strings.ReplaceAll(s, m.mark, " ")
	}), nil
}

func newBPEDecoder(p part) (decoder, error) {
	fields := struct {
		Suffix string `json:"suffix"`
	}{"</w>"}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if fields.Suffix == "" {
		return nil, fmt.Errorf("%s: an empty suffix", p.Type)
	}
	return each(func(s string, i, n int) string {
		if i == n-1 {
			return strings.ReplaceAll(s, fields.Suffix, "")
		}
		return strings.ReplaceAll(s, fields.Suffix, " ")
	}), nil
}

// newCTCDecoder reads a decoder of speech recognition: a token that is repeated counts once.
func newCTCDecoder(p part) (decoder, error) {
	var fields struct {
		Pad       string `json:"pad_token"`
		Delimiter string `json:"word_delimiter_token"`
		Cleanup   bool   `json:"cleanup"`
	}
	if err := p.read(&fields, "pad_token", "word_delimiter_token", "cleanup"); err != nil {
		return nil, err
	}
	return func(tokens []string) (out []string, err error) {
		for _, s := range slices.Compact(tokens) {
			s = strings.ReplaceAll(s, fields.Pad, "")
			if fields.Cleanup {
				s = strings.ReplaceAll(tidy(s), fields.Delimiter, " ")
			}
			if s != "" {
				out = append(out, s)
			}
		}
		return out, nil
	}, nil
}

// byteLevelDecoder joins the bytes that tokens spell in GPT-2's alphabet.
func byteLevelDecoder(tokens []string) ([]string, error) {
	var w strings.Builder
	for _, s := range tokens {
		w.WriteString(byteLevelText(s))
	}
	return []string{w.String()}, nil
}

// byteLevelText reads GPT-2's alphabet; a token that has other characters stands for itself.
func byteLevelText(s string) string {
	if raw, ok := fromAlphabet(s); ok {
		return raw
	}
	return s
}

// fallbackDecoder writes bytes for their tokens. Bytes that follow each other and are UTF-8 are one token.
func fallbackDecoder(tokens []string) (out []string, err error) {
	var run []byte
	flush := func() {
		if utf8.Valid(run) && len(run) > 0 {
			out = append(out, string(run))
		} else {
			for i := range run {
				out = append(out, string(run[i:i+1]))
			}
		}
		run = run[:0]
	}
	for _, s := range tokens {
		if b, ok := fallbackByte(s); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, s)
	}
	flush()
	return out, nil
}

// fallbackByte is the byte that a token "<0xXX>" stands for.
func fallbackByte(s string) (byte, bool) {
	if len(s) != 6 || !strings.HasPrefix(s, "<0x") || s[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(strings.TrimPrefix(s[3:5], "+"), 16, 8) // Rust's parser takes the sign
	return byte(b), err == nil
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
