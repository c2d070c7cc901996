// Package printable prints texts of other computers without what could command a terminal, and lists.
package printable

import (
	"fmt"
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

// List is the elements of a list, with commas between them.
func List[T any](all []T) string {
	texts := make([]string, len(all))
	for i, x := range all {
		texts[i] = fmt.Sprint(x)
	}
	return strings.Join(texts, ", ")
}
