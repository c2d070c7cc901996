package translate

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// token is a lexeme of WGSL with the line on which it begins. The text of the last token is empty.
type token struct {
	kind tokenKind
	text string
	line int
}

type tokenKind uint8

const (
	end tokenKind = iota
	name
	number
	symbol
)

// symbols of more than one character, the longest first.
var symbols = []string{"<<=", ">>=", "->", "==", "!=", "<=", ">=", "&&", "||", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=",
	"<<"}

// lex splits WGSL into tokens. ">>" stays two symbols, since it may close two templates.
func lex(text string) ([]token, error) {
	out := make([]token, 0, len(text)/3)
	line := 1
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		n := size
		switch {
		case r == '\n':
			line++
		case unicode.IsSpace(r):
		case strings.HasPrefix(text, "//"):
			if n = strings.IndexByte(text, '\n'); n < 0 {
				n = len(text)
			}
		case r == '_' || unicode.IsLetter(r):
			n = span(text, func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) })
			out = append(out, token{name, text[:n], line})
		case digit(r) || r == '.' && len(text) > 1 && digit(rune(text[1])):
			n = numberLength(text)
			out = append(out, token{number, text[:n], line})
		case strings.ContainsRune("@(){}[]<>,;:.=+-*/%&|^!~", r):
			for _, s := range symbols {
				if strings.HasPrefix(text, s) {
					n = len(s)
					break
				}
			}
			out = append(out, token{symbol, text[:n], line})
		default:
			return nil, fmt.Errorf("line %d: expected global item, found %q", line, r)
		}
		text = text[n:]
	}
	return append(out, token{end, "", line}), nil
}

func digit(r rune) bool { return r >= '0' && r <= '9' }

// span returns the length of the beginning of text whose characters are in a set.
func span(text string, in func(rune) bool) int {
	if i := strings.IndexFunc(text, func(r rune) bool { return !in(r) }); i >= 0 {
		return i
	}
	return len(text)
}

// numberLength returns the length of the number that text begins with, including its suffix.
func numberLength(text string) int {
	if strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0X") {
		return 2 + span(text[2:], func(r rune) bool { return strings.ContainsRune("0123456789abcdefABCDEFui", r) })
	}
	n := span(text, func(r rune) bool { return strings.ContainsRune("0123456789.", r) })
	if n < len(text) && (text[n] == 'e' || text[n] == 'E') {
		n++
		if n < len(text) && (text[n] == '+' || text[n] == '-') {
			n++
		}
		n += span(text[n:], digit)
	}
	if n < len(text) && strings.ContainsRune("fuih", rune(text[n])) {
		n++
	}
	return n
}
