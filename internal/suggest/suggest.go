// Package suggest finds what a misspelled name may stand for.
package suggest

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Closest returns the names that differ from a misspelled one by the fewest insertions, deletions, replacements and
// exchanges of neighbors, if these are at most a third of its letters.
func Closest(name string, among []string) (closest []string) {
	name = strings.ToLower(name)
	fewest := max(1, utf8.RuneCountInString(name)/3)
	for _, candidate := range among {
		switch d := distance([]rune(name), []rune(strings.ToLower(candidate))); {
		case d < fewest:
			closest, fewest = []string{candidate}, d
		case d == fewest:
			closest = append(closest, candidate)
		}
	}
	return closest
}

// DidYouMean is a question in brackets, behind a space, that offers the closest names. It is empty if there are none.
func DidYouMean(name string, among []string) string { return Question(Closest(name, among)) }

// Question is DidYouMean of names that were found.
func Question(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", strings.Join(names, " or "))
}

// distance is the restricted Damerau–Levenshtein distance.
func distance(a, b []rune) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
