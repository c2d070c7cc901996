package tokenizer

import (
	"errors"
	"unicode"
	"unicode/utf8"
)

// This file has the pre-tokenizers that look at characters one by one.

func isNumeric(r rune) bool { return characters().Sets.Numeric.has(r) }

func isPunctuation(r rune) bool { return characters().Sets.Punctuation.has(r) }

// splitAt cuts at characters.
func splitAt(f func(rune) bool, behavior string) (preTokenizer, error) {
	return newSplit(findEach(f), behavior, false)
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

func newFixedLength(c component) (preTokenizer, error) {
	if c.Length == nil {
		return fixedLength(5), nil
	}
	if *c.Length < 1 {
		return nil, errors.New("FixedLength: length is below 1")
	}
	return fixedLength(*c.Length), nil
}

func (n fixedLength) cut(dst []string, s string, _, _ bool) ([]string, error) {
	from, count := 0, 0
	for at := 0; at < len(s); {
		at += charLen(s[at:])
		if count++; count == int(n) || at == len(s) {
			dst = append(dst, s[from:at])
			from, count = at, 0
		}
	}
	return dst, nil
}

// scriptsPre cuts where the script changes. As in Hugging Face's library, spaces in front of the first character are
// lost.
type scriptsPre struct{}

func (scriptsPre) cut(dst []string, s string, _, _ bool) ([]string, error) {
	from, last := -1, ""
	for at := 0; at < len(s); {
		r, n := utf8.DecodeRuneInString(s[at:])
		if script := scriptOf(r); script != anyScript {
			if last != script {
				if from >= 0 {
					dst = append(dst, s[from:at])
				}
				from = at
			}
			last = script
		}
		at += n
	}
	if from >= 0 {
		dst = append(dst, s[from:])
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
