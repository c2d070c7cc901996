package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/internal/oniguruma"
)

// scanner returns the end of the piece of s that begins at a place: one match of a pattern that matches everywhere. The
// scanners of the common patterns are far faster than a matcher of patterns.
type scanner func(s string, at int) int

// scannerOf returns the scanner of a pattern; nil if there is none.
func scannerOf(pattern string) scanner {
	switch pattern {
	case gpt2Pattern:
		return scanGPT2
	case gpt4Pattern:
		return func(s string, at int) int { return scanGPT4(s, at, 3) }
	case qwenPattern:
		return func(s string, at int) int { return scanGPT4(s, at, 1) }
	}
	return nil
}

// cut makes a scanner a preTokenizer.
func (scan scanner) cut(dst []fragment, p fragment) ([]fragment, error) {
	for at := 0; at < len(p.text); {
		end := scan(p.text, at)
		dst = append(dst, p.slice(at, end))
		at = end
	}
	return dst, nil
}

// runeClass is what the patterns distinguish.
type runeClass uint8

const (
	otherRune runeClass = iota
	letterRune
	numberRune
	spaceRune
)

var asciiClasses = func() (c [utf8.RuneSelf]runeClass) {
	for r := range c {
		switch {
		case unicode.IsLetter(rune(r)):
			c[r] = letterRune
		case unicode.IsDigit(rune(r)):
			c[r] = numberRune
		case unicode.IsSpace(rune(r)):
			c[r] = spaceRune
		}
	}
	return c
}()

// The classes of the patterns, as Oniguruma knows them.
var letters, numbers, spaceCharacters = oniguruma.Property("L"), oniguruma.Property("N"), oniguruma.Property("Space")

func classOf(r rune) runeClass {
	switch {
	case letters().Has(r):
		return letterRune
	case numbers().Has(r):
		return numberRune
	case spaceCharacters().Has(r):
		return spaceRune
	}
	return otherRune
}

// classAt returns the class and the length of the character at a place before the end.
func classAt(s string, at int) (runeClass, int) {
	if b := s[at]; b < utf8.RuneSelf {
		return asciiClasses[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[at:])
	return classOf(r), n
}

// run returns the end of the characters of a class from a place on, at most so many.
func run(s string, at int, class runeClass, most int) int {
	for ; at < len(s) && most > 0; most-- {
		c, n := classAt(s, at)
		if c != class {
			break
		}
		at += n
	}
	return at
}

const unlimited = 1 << 62

// longS is equal to s when case is ignored.
const longS = "ſ"

// contraction returns the end of 's, 't, 're, 've, 'm, 'll or 'd at a place; at if there is none. fold ignores case.
func contraction(s string, at int, fold bool) int {
	letter := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if b := s[i]; !fold || b < 'A' || b > 'Z' {
			return b
		}
		return s[i] + 'a' - 'A'
	}
	if s[at] != '\'' {
		return at
	}
	if fold && strings.HasPrefix(s[at+1:], longS) {
		return at + 1 + len(longS)
	}
	switch second := letter(at + 2); letter(at + 1) {
	case 's', 't', 'm', 'd':
		return at + 2
	case 'r', 'v':
		if second == 'e' {
			return at + 3
		}
	case 'l':
		if second == 'l' {
			return at + 3
		}
	}
	return at
}

// scanGPT2 is gpt2Pattern.
func scanGPT2(s string, at int) int {
	if end := contraction(s, at, false); end > at {
		return end
	}
	from := at
	if s[at] == ' ' && at+1 < len(s) {
		from++
	}
	c, n := classAt(s, from)
	if c != spaceRune {
		return run(s, from+n, c, unlimited)
	}
	return spaces(s, at)
}

// spaces is \s+(?!\S)|\s+: all spaces of a run but the last one, if something follows.
func spaces(s string, at int) int {
	end := run(s, at, spaceRune, unlimited)
	if end == len(s) {
		return end
	}
	_, n := utf8.DecodeLastRuneInString(s[:end])
	if end-n == at {
		return end
	}
	return end - n
}

// scanGPT4 is gpt4Pattern, with numbers of so many digits.
func scanGPT4(s string, at, digits int) int {
	if end := contraction(s, at, true); end > at {
		return end
	}
	c, n := classAt(s, at)
	switch c {
	case letterRune:
		return run(s, at+n, letterRune, unlimited)
	case numberRune:
		return run(s, at+n, numberRune, digits-1)
	}
	if s[at] != '\r' && s[at] != '\n' {
		if end := run(s, at+n, letterRune, unlimited); end > at+n {
			return end
		}
	}
	from := at
	if s[at] == ' ' {
		from++
	}
	if end := run(s, from, otherRune, unlimited); end > from {
		return newlines(s, end)
	}
	end := run(s, at, spaceRune, unlimited)
	for i := end - 1; i >= at; i-- {
		if s[i] == '\r' || s[i] == '\n' {
			return i + 1
		}
	}
	return spaces(s, at)
}

func newlines(s string, at int) int {
	for at < len(s) && (s[at] == '\r' || s[at] == '\n') {
		at++
	}
	return at
}
