package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func upper(s string) string { return cases.Upper(language.Und).String(s) }
func lower(s string) string { return cases.Lower(language.Und).String(s) }

// titled returns a character in title case.
func titled(r rune) string { return cases.Title(language.Und, cases.NoLower).String(string(r)) }

// capitalize is Python's str.capitalize.
func capitalize(s string) string {
	noSigma(s)
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return titled(r) + lower(s[n:])
}

// title is Python's str.title: a character behind a cased one is lower case.
func title(s string) string {
	noSigma(s)
	var b strings.Builder
	cased := false
	for _, r := range s {
		if cased {
			b.WriteString(lower(string(r)))
		} else {
			b.WriteString(titled(r))
		}
		cased = isUpper(r) || isLower(r) || unicode.IsTitle(r)
	}
	return b.String()
}

// noSigma refuses the letter whose lower case depends on the letters around it.
func noSigma(s string) {
	if strings.ContainsRune(s, 'Σ') {
		fail("the title case of a text with Σ is not supported")
	}
}

func isUpper(r rune) bool { return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r) }
func isLower(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) }

// isCase reports whether a text has cased characters, and only those wanted.
func isCase(s string, wanted func(r rune) bool) bool {
	found := false
	for _, r := range s {
		switch {
		case wanted(r):
			found = true
		case isUpper(r) || isLower(r) || unicode.IsTitle(r):
			return false
		}
	}
	return found
}

// isTitled is Python's str.istitle.
func isTitled(s string) bool {
	found, cased := false, false
	for _, r := range s {
		switch {
		case isUpper(r) || unicode.IsTitle(r):
			if cased {
				return false
			}
			found, cased = true, true
		case isLower(r):
			if !cased {
				return false
			}
			found, cased = true, true
		default:
			cased = false
		}
	}
	return found
}

// swapcase is Python's str.swapcase.
func swapcase(s string) string {
	noSigma(s)
	var b strings.Builder
	for _, r := range s {
		switch {
		case isUpper(r):
			b.WriteString(lower(string(r)))
		case isLower(r):
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
