// Package printable makes texts of other computers safe to print.
package printable

import (
	"strings"
	"unicode"
)

// Text replaces the characters of a text that could command a terminal.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '�'
	}, text)
}
