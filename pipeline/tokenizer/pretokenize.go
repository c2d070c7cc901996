package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// gpt2Pattern is how a ByteLevel pre-tokenizer cuts text.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// preTokenizer cuts a piece of text into pieces that are encoded apart. head says that the piece begins its text;
// continued that this text continues a document, so that nothing may be put in front of its head.
type preTokenizer interface {
	cut(dst []string, s string, head, continued bool) ([]string, error)
}

func parsePreTokenizer(raw json.RawMessage) (preTokenizer, error) {
	p, err := parsePreTokenizerAt(raw, 0)
	if err != nil {
		return nil, err
	}
	return p, checkByteLevelLast(p, true)
}

// checkByteLevelLast refuses what would cut text already spelled in GPT-2's alphabet: this package keeps bytes as
// bytes.
func checkByteLevelLast(p preTokenizer, last bool) error {
	switch p := p.(type) {
	case byteLevelPre:
		if !last {
			return errors.New("ByteLevel is not the last of its Sequence")
		}
	case sequencePre:
		for i, q := range p {
			if err := checkByteLevelLast(q, last && i == len(p)-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// lastPre is the innermost last pre-tokenizer.
func lastPre(p preTokenizer) preTokenizer {
	if seq, ok := p.(sequencePre); ok && len(seq) > 0 {
		return lastPre(seq[len(seq)-1])
	}
	return p
}

func parsePreTokenizerAt(raw json.RawMessage, depth int) (preTokenizer, error) {
	if isNull(raw) {
		return sequencePre(nil), nil
	}
	c, err := parseComponent(raw, depth)
	if err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		var seq sequencePre
		for i, r := range c.Pretokenizers {
			p, err := parsePreTokenizerAt(r, depth+1)
			if err != nil {
				return nil, fmt.Errorf("number %d: %w", i, err)
			}
			seq = append(seq, p)
		}
		return seq, nil
	case "ByteLevel":
		return newByteLevel(c)
	case "Split":
		if scan := c.scanner(); scan != nil {
			return scannerPre{scan}, nil
		}
		find, err := c.Pattern.compile()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Type, err)
		}
		return newSplit(find, c.Behavior, c.Invert)
	case "Digits":
		if c.IndividualDigits {
			return splitAt(isNumeric, "Isolated")
		}
		return splitAt(isNumeric, "Contiguous")
	case "Punctuation":
		if c.Behavior == "" {
			c.Behavior = "Isolated"
		}
		return splitAt(isPunctuation, c.Behavior)
	case "WhitespaceSplit":
		return splitAt(unicode.IsSpace, "Removed")
	case "BertPreTokenizer":
		return sequencePre{split{find: findEach(unicode.IsSpace), behavior: removed}, split{find: findEach(isPunctuation)}}, nil
	case "Whitespace":
		return split{find: findWords, behavior: removed, invert: true}, nil
	case "CharDelimiterSplit":
		if utf8.RuneCountInString(c.Delimiter) != 1 {
			return nil, fmt.Errorf("%s: delimiter is %q: expected one character", c.Type, c.Delimiter)
		}
		return split{find: func(s string) ([][]int, error) { return findLiteral(s, c.Delimiter), nil }, behavior: removed}, nil
	case "FixedLength":
		return newFixedLength(c)
	case "UnicodeScripts":
		return scriptsPre{}, nil
	case "Metaspace":
		return newMetaspace(c)
	}
	return nil, fmt.Errorf("type %q is not supported: expected Sequence, ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, FixedLength, UnicodeScripts or Metaspace", c.Type)
}

// scanner returns the scanner of a Split that keeps the matches of a known pattern; nil for others.
func (c component) scanner() scanner {
	if c.Pattern == nil || c.Pattern.Regex == nil || !(c.Behavior == "Isolated" && !c.Invert || c.Behavior == "Removed" && c.Invert) {
		return nil
	}
	return scannerOf(*c.Pattern.Regex)
}

type sequencePre []preTokenizer

func (q sequencePre) cut(dst []string, text string, head, continued bool) ([]string, error) {
	pieces := []string{text}
	for _, p := range q {
		var next []string
		var err error
		for i, s := range pieces {
			// A piece after removed text does not begin the text.
			if next, err = p.cut(next, s, head && i == 0 && strings.HasPrefix(text, s), continued); err != nil {
				return nil, err
			}
		}
		pieces = next
	}
	return append(dst, pieces...), nil
}

// byteLevelPre cuts by GPT-2's pattern, if find is set; the bytes stay bytes, bpe knows their spelling.
type byteLevelPre struct {
	find   scanner
	prefix bool // put a space before a piece that has none
}

func newByteLevel(c component) (preTokenizer, error) {
	p := byteLevelPre{prefix: c.AddPrefixSpace == nil || *c.AddPrefixSpace}
	if c.UseRegex != nil && !*c.UseRegex {
		return p, nil
	}
	p.find = scanGPT2
	return p, nil
}

func (p byteLevelPre) cut(dst []string, s string, head, continued bool) ([]string, error) {
	if p.prefix && !strings.HasPrefix(s, " ") && !(head && continued) {
		s = " " + s
	}
	if p.find == nil {
		return append(dst, s), nil
	}
	return p.find.cut(dst, s), nil
}

// scannerPre cuts by a pattern that matches everywhere.
type scannerPre struct{ find scanner }

func (p scannerPre) cut(dst []string, s string, _, _ bool) ([]string, error) {
	return p.find.cut(dst, s), nil
}

type behavior int

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

// split cuts where find matches, or, inverted, between matches.
type split struct {
	find     finder
	behavior behavior
	invert   bool
}

func newSplit(find finder, name string, invert bool) (preTokenizer, error) {
	for i, n := range []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"} {
		if n == name {
			return split{find, behavior(i), invert}, nil
		}
	}
	return nil, fmt.Errorf("behavior is %q: expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", name)
}

// span is a stretch of text that is a match or lies between matches.
type span struct {
	from, to int
	match    bool
}

func (p split) cut(dst []string, s string, _, _ bool) ([]string, error) {
	found, err := p.find(s)
	if err != nil {
		return nil, err
	}
	spans := make([]span, 0, 2*len(found)+1)
	at := 0
	for _, m := range found {
		if at != m[0] {
			spans = append(spans, span{at, m[0], p.invert})
		}
		spans = append(spans, span{m[0], m[1], !p.invert}) // an empty match counts
		at = m[1]
	}
	if at != len(s) {
		spans = append(spans, span{at, len(s), p.invert})
	}
	for _, x := range p.behavior.apply(spans) {
		if x.from < x.to {
			dst = append(dst, s[x.from:x.to])
		}
	}
	return dst, nil
}

// apply joins or drops spans; the result shares their memory. MergedWithNext goes through them from the end.
func (b behavior) apply(spans []span) []span {
	if b == isolated {
		return spans
	}
	if b == mergedWithNext {
		slices.Reverse(spans)
	}
	out := spans[:0]
	previous := false // whether the span before was a match
	for _, x := range spans {
		join := false // with the span before
		switch b {
		case removed:
			if x.match {
				continue
			}
		case mergedWithPrevious, mergedWithNext:
			join = x.match && !previous
		case contiguous:
			join = x.match == previous
		}
		if join && len(out) > 0 {
			last := &out[len(out)-1]
			last.from, last.to = min(last.from, x.from), max(last.to, x.to)
		} else {
			out = append(out, x)
		}
		previous = x.match
	}
	if b == mergedWithNext {
		slices.Reverse(out)
	}
	return out
}

// metaspace writes spaces as another character, which also stands in front of a text, and cuts before it.
type metaspace struct {
	mark   string
	scheme string
	split  bool
}

func newMetaspace(c component) (preTokenizer, error) {
	p := metaspace{mark: c.Replacement, scheme: c.PrependScheme, split: c.Split == nil || *c.Split}
	if utf8.RuneCountInString(p.mark) != 1 {
		return nil, fmt.Errorf("%s: replacement is %q: expected one character", c.Type, p.mark)
	}
	if p.scheme == "" { // the older way to say it
		p.scheme = "always"
		if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
			p.scheme = "never"
		}
	}
	switch p.scheme {
	case "always", "first", "never":
		return p, nil
	}
	return nil, fmt.Errorf("%s: prepend_scheme is %q: expected always, first or never", c.Type, p.scheme)
}

func (p metaspace) cut(dst []string, s string, head, continued bool) ([]string, error) {
	s = strings.ReplaceAll(s, " ", p.mark)
	prepend := p.scheme == "always" || p.scheme == "first" && head
	if prepend && !(head && continued) && !strings.HasPrefix(s, p.mark) {
		s = p.mark + s
	}
	if !p.split {
		return append(dst, s), nil
	}
	literal := func(s string) ([][]int, error) { return findLiteral(s, p.mark), nil }
	return split{find: literal, behavior: mergedWithNext}.cut(dst, s, head, continued)
}
