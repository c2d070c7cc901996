package oniguruma

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

// The tables are made by maketables.py.
//
//go:embed tables.json.gz
var packed []byte

// tables are the Unicode tables. Read only.
type tables struct {
	names     map[string]int // property of a name in small letters without spaces, hyphens and underscores
	ranges    []set          // of each property
	foldings  []folding      // foldings to one character first, then to two and three
	fold      map[rune]rune  // of characters that fold to one other
	single    map[rune][]rune
	multiple  map[string]*folding // by the folding
	expanded  map[rune]*folding   // by the characters that fold to several
	graphemes []graphemeRange
}

// folding is a case folding and the characters that fold to it.
type folding struct {
	to   []rune
	from []rune
}

// unicodeTables unpacks the tables at the first call.
var unicodeTables = sync.OnceValue(func() *tables {
	var file struct {
		Names     map[string]int
		Ranges    []set
		Folds     [][2][]rune
		Graphemes map[string]set
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		err = json.NewDecoder(z).Decode(&file)
	}
	if err != nil {
		panic(fmt.Sprintf("oniguruma: the tables of this program are broken: %v", err))
	}
	t := &tables{names: file.Names, ranges: file.Ranges, fold: map[rune]rune{}, single: map[rune][]rune{},
		multiple: map[string]*folding{}, expanded: map[rune]*folding{}}
	for _, r := range t.ranges {
		sum(r)
	}
	for _, f := range file.Folds {
		t.foldings = append(t.foldings, folding{f[0], f[1]})
	}
	for i := range t.foldings {
		f := &t.foldings[i]
		if len(f.to) == 1 {
			t.single[f.to[0]] = f.from
			for _, r := range f.from {
				t.fold[r] = f.to[0]
			}
			continue
		}
		t.multiple[string(f.to)] = f
		for _, r := range f.from {
			t.expanded[r] = f
		}
	}
	t.graphemes = graphemeRanges(file.Graphemes)
	return t
})

// sum replaces distances by numbers.
func sum(list set) {
	for i := 1; i < len(list); i++ {
		list[i] += list[i-1]
	}
}

// Properties by their place in the tables.
const (
	alphaProperty = 1 + iota
	blankProperty
	cntrlProperty
	digitProperty
	graphProperty
	lowerProperty
	printProperty
	punctProperty
	spaceProperty
	upperProperty
	xdigitProperty
	wordProperty
	alnumProperty
	asciiProperty
)

// posixNames are the properties that [:name:] has.
var posixNames = map[string]int{"alpha": alphaProperty, "blank": blankProperty, "cntrl": cntrlProperty, "digit": digitProperty,
	"graph": graphProperty, "lower": lowerProperty, "print": printProperty, "punct": punctProperty, "space": spaceProperty,
	"upper": upperProperty, "xdigit": xdigitProperty, "word": wordProperty, "alnum": alnumProperty, "ascii": asciiProperty}
