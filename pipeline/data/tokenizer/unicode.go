package tokenizer

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The tables are made by maketables.py.
//
//go:embed tables.json.gz
var packedTables []byte

// runeSet is a set of characters: the first and last ones of its ranges, in order.
type runeSet []rune

func (s runeSet) has(r rune) bool {
	i, exact := slices.BinarySearch(s, r)
	return exact || i%2 == 1
}

// characterTables are what Hugging Face's tokenizers knows of characters. Its parts have the tables of several versions
// of Unicode, from 7 to 17. Read only.
type characterTables struct {
	Sets struct {
		Numeric, Punctuation, Mark, Nonspacing, Chinese runeSet

		Word        runeSet // of the pre-tokenizer Whitespace
		BertControl runeSet // what BertNormalizer removes
		Decomposes  runeSet // what NFKD changes
	}
	Lower   map[rune]string // of those that are not their own small letter
	Scripts map[string]runeSet
}

// characters unpacks the tables at its first call.
var characters = sync.OnceValue(func() *characterTables {
	t := &characterTables{}
	z, err := gzip.NewReader(bytes.NewReader(packedTables))
	if err == nil {
		err = json.NewDecoder(z).Decode(t)
	}
	if err != nil {
		panic(fmt.Sprintf("tokenizer: the tables of this program are broken: %v", err))
	}
	s := &t.Sets
	for _, list := range []runeSet{s.Numeric, s.Punctuation, s.Mark, s.Nonspacing, s.Chinese, s.Word, s.BertControl, s.Decomposes} {
		sumDistances(list)
	}
	for _, list := range t.Scripts {
		sumDistances(list)
	}
	return t
})

// sumDistances replaces distances by numbers.
func sumDistances(list runeSet) {
	for i := 1; i < len(list); i++ {
		list[i] += list[i-1]
	}
}

// lower maps each character by itself.
func lower(s string) string {
	small := characters().Lower
	var w strings.Builder
	for i, r := range s {
		if to, ok := small[r]; ok {
			w.WriteString(to)
		} else {
			w.WriteString(s[i : i+charLen(s[i:])])
		}
	}
	return w.String()
}

// charLen is the number of bytes of the first character; a byte that is not UTF-8 counts as one.
func charLen(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// without removes characters.
func without(s string, remove func(r rune) bool) string {
	return strings.Map(func(r rune) rune {
		if remove(r) {
			return -1
		}
		return r
	}, s)
}

// normalForm returns the normalizer of a normal form of Unicode 9, which tokenizers has. A character that got its
// decomposition or its place among marks later is as any letter.
func normalForm(form norm.Form) func(string) string {
	return func(s string) string {
		var w strings.Builder
		from := 0
		for i, r := range s {
			if r >= utf8.RuneSelf && isLater(r) {
				w.WriteString(normal(form, s[from:i]))
				from = i + charLen(s[i:])
				w.WriteString(s[i:from])
			}
		}
		if from == 0 {
			return normal(form, s)
		}
		w.WriteString(normal(form, s[from:]))
		return w.String()
	}
}

func isLater(r rune) bool {
	p := norm.NFKD.PropertiesString(string(r))
	sets := &characters().Sets
	return p.CCC() != 0 && !sets.Mark.has(r) || p.Decomposition() != nil && !sets.Decomposes.has(r)
}

// maxMarks is the number of marks in a row up to which the package norm adds no characters.
const maxMarks = 30

// normal returns the normal form of s, also where more marks follow each other than the package norm takes.
func normal(form norm.Form, s string) string {
	marks := 0
	for _, r := range s {
		if r < utf8.RuneSelf || !unicode.IsMark(r) {
			marks = 0
		} else if marks++; marks > maxMarks/3 { // a mark becomes up to three
			return manyMarks(form, s)
		}
	}
	return form.String(s)
}

// manyMarks is the definition of a normal form: it decomposes, sorts marks and composes.
func manyMarks(form norm.Form, s string) string {
	decompose := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decompose = norm.NFKD
	}
	var all []rune
	for _, r := range s {
		all = append(all, []rune(decompose.String(string(r)))...)
	}
	class := func(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }
	for from := 0; from < len(all); from++ {
		to := from
		for to < len(all) && class(all[to]) != 0 {
			to++
		}
		slices.SortStableFunc(all[from:to], func(a, b rune) int { return int(class(a)) - int(class(b)) })
		from = to
	}
	if form == norm.NFD || form == norm.NFKD {
		return string(all)
	}
	return string(compose(all, class))
}

// compose joins each mark to the last character that is none, if no mark between them is of the same or a higher class.
func compose(all []rune, class func(rune) uint8) []rune {
	var out []rune
	base, last := -1, -1 // the place of the base in out, and the class of what stands last behind it
	for _, r := range all {
		c := int(class(r))
		if base >= 0 && (last < c || last == -1) {
			if pair := []rune(norm.NFC.String(string([]rune{out[base], r}))); len(pair) == 1 {
				out[base] = pair[0]
				continue
			}
		}
		out = append(out, r)
		if last = c; c == 0 {
			base, last = len(out)-1, -1
		}
	}
	return out
}
