package tokenizer

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// This file has the pre-tokenizers that look at characters one by one.

func isNumeric(r rune) bool { return characters().Sets.Numeric.has(r) }

func isPunctuation(r rune) bool { return characters().Sets.Punctuation.has(r) }

type digitsFields struct {
	Individual bool `json:"individual_digits"`
}

func newDigits(p part) (preTokenizer, error) {
	var fields digitsFields
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if fields.Individual {
		return split{find: findEach(isNumeric), behavior: isolated}, nil
	}
	return split{find: findEach(isNumeric), behavior: contiguous}, nil
}

func newPunctuation(p part) (preTokenizer, error) {
	fields := struct {
		Behavior string `json:"behavior"`
	}{"Isolated"}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	b, err := parseBehavior(fields.Behavior)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Type, err)
	}
	return split{find: findEach(isPunctuation), behavior: b}, nil
}

func newCharDelimiterSplit(p part) (preTokenizer, error) {
	var fields struct {
		Delimiter string `json:"delimiter"`
	}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if utf8.RuneCountInString(fields.Delimiter) != 1 {
		return nil, fmt.Errorf("%s: delimiter is %q: expected one character", p.Type, fields.Delimiter)
	}
	return split{find: func(s string) ([][]int, error) { return findLiteral(s, fields.Delimiter), nil }, behavior: removed}, nil
}

// findEach finds each character that f has.
func findEach(f func(rune) bool) finder {
	return func(s string) (found [][]int, err error) {
		for i := 0; i < len(s); {
			r, n := utf8.DecodeRuneInString(s[i:])
			if f(r) {
				found = append(found, []int{i, i + n})
			}
			i += n
		}
		return found, nil
	}
}

// findWords finds \w+|[^\w\s]+ of the regular expressions of Rust.
func findWords(s string) (found [][]int, err error) {
	word := characters().Sets.Word
	last := spaceRune
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		class := otherRune
		switch {
		case word.has(r):
			class = letterRune
		case unicode.IsSpace(r):
			class = spaceRune
		}
		switch {
		case class == spaceRune:
		case class == last:
			found[len(found)-1][1] = i + n
		default:
			found = append(found, []int{i, i + n})
		}
		last = class
		i += n
	}
	return found, nil
}

// fixedLength cuts after so many characters.
type fixedLength int

func newFixedLength(p part) (preTokenizer, error) {
	fields := struct {
		Length int `json:"length"`
	}{5}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if fields.Length < 1 {
		return nil, fmt.Errorf("%s: length is %d: expected at least 1", p.Type, fields.Length)
	}
	return fixedLength(fields.Length), nil
}

func (n fixedLength) cut(dst []fragment, p fragment) ([]fragment, error) {
	from, count := 0, 0
	for at := 0; at < len(p.text); {
		at += charLen(p.text[at:])
		if count++; count == int(n) || at == len(p.text) {
			dst = append(dst, p.slice(from, at))
			from, count = at, 0
		}
	}
	return dst, nil
}

// scriptsPre cuts where the script changes. As in Hugging Face's library, spaces in front of the first character are
// lost.
type scriptsPre struct{}

func (scriptsPre) cut(dst []fragment, p fragment) ([]fragment, error) {
	from, last := -1, ""
	for at := 0; at < len(p.text); {
		r, n := utf8.DecodeRuneInString(p.text[at:])
		if script := scriptOf(r); script != anyScript {
			if last != script {
				if from >= 0 {
					dst = append(dst, p.slice(from, at))
				}
				from = at
			}
			last = script
		}
		at += n
	}
	if from >= 0 {
		dst = append(dst, p.slice(from, len(p.text)))
	}
	return dst, nil
}

const anyScript = "Any"

// scriptOf is the script of a character, where Japanese has one.
func scriptOf(r rune) string {
	switch r {
	case ' ':
		return anyScript
	case 'ー':
		return "Han"
	}
	for script, set := range characters().Scripts {
		if !set.has(r) {
			continue
		}
		if script == "Hiragana" || script == "Katakana" {
			return "Han"
		}
		return script
	}
	return anyScript
}
