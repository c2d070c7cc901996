// Package oniguruma matches regular expressions as Oniguruma 6.9.10 does, in its own syntax on UTF-8: the expressions
// of the Split pre-tokenizers and Replace normalizers of Hugging Face's tokenizers. Its Unicode tables are Oniguruma's,
// of Unicode 16.
//
// A pattern passes through a parser (parse.go, group.go, class.go, quantifier.go), the expansion of its case folding
// (fold.go) and a compiler (compile.go) to a program that a backtracking matcher runs (match.go). Where the order of
// two ways to match matters, these files do what Oniguruma's regparse.c, regcomp.c and regexec.c do.
//
// Compile refuses what the package lacks: conditionals, absent operators, callouts, calls of groups, back references
// that ignore case or name a level, word segments and options of the whole pattern.
package oniguruma

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Regexp is a compiled pattern. It is safe for concurrent use.
type Regexp struct {
	program []instruction
	slots   int      // captures and loop positions
	first   *byteSet // the bytes that a match can begin with; nil if it can be empty
}

// Compile returns the pattern's program. An error names the fault and its place.
func Compile(pattern string) (*Regexp, error) {
	if !utf8.ValidString(pattern) {
		return nil, errors.New("the pattern is not UTF-8")
	}
	p := parser{src: []rune(pattern), names: map[string][]int{}}
	tree, err := p.parse()
	if err != nil {
		return nil, fmt.Errorf("%w, before character %d of the pattern", err, p.at)
	}
	return compile(tree, p.groups)
}

// FindAll returns the matches that do not overlap as pairs of byte offsets, in order. A match may be empty, but not at
// the end of the match before. A pattern that backtracks without end is an error, which names the place in s.
func (re *Regexp) FindAll(s string) ([][]int, error) {
	m := matcher{program: re.program, s: s, text: s, slots: make([]int, re.slots)}
	var found [][]int
	end, last := 0, -1
	for end <= len(s) {
		from, to := m.search(re.first, end)
		if m.err != nil {
			return nil, fmt.Errorf("the match of %.40q, at byte %d of a piece of text, %w", s[m.from:], m.from, m.err)
		}
		if from < 0 {
			break
		}
		if from == to && to == last {
			_, n := utf8.DecodeRuneInString(s[end:])
			end += max(n, 1)
			continue
		}
		found = append(found, []int{from, to})
		end, last = to, to
	}
	return found, nil
}
