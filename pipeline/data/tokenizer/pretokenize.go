package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// gpt2Pattern is how a ByteLevel pre-tokenizer cuts text.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// piece is a part of a text.
type fragment struct {
	text string
	// front is how many bytes at its beginning come from the first character of a document, whatever was put before it.
	front int
	bare  bool // it goes on with a document: nothing is put in front of it
}

func (p fragment) slice(from, to int) fragment {
	return fragment{p.text[from:to], min(max(p.front-from, 0), to-from), p.bare && from == 0}
}

// prepended puts something in front of a piece that is not empty, unless it goes on with a document.
func (p fragment) prepended(s string) fragment {
	if p.bare {
		return p
	}
	p.text = s + p.text
	if p.front > 0 {
		p.front += len(s)
	}
	return p
}

// preTokenizer cuts a piece of text into pieces that are encoded apart.
type preTokenizer interface {
	cut(dst []fragment, p fragment) ([]fragment, error)
}

func parsePreTokenizer(raw json.RawMessage) (preTokenizer, error) {
	p, err := parsePreTokenizerAt(raw, 0)
	if err != nil {
		return nil, err
	}
	return spelled(p, true), nil
}

// spelled makes each ByteLevel that is not the last pre-tokenizer spell its pieces in GPT-2's alphabet: what follows
// cuts that spelling. The last one keeps bytes as bytes.
func spelled(p preTokenizer, last bool) preTokenizer {
	switch p := p.(type) {
	case byteLevelPre:
		p.spells = !last
		return p
	case sequencePre:
		for i := range p {
			p[i] = spelled(p[i], last && i == len(p)-1)
		}
	}
	return p
}

// lastPre is the innermost last pre-tokenizer.
func lastPre(p preTokenizer) preTokenizer {
	if seq, ok := p.(sequencePre); ok && len(seq) > 0 {
		return lastPre(seq[len(seq)-1])
	}
	return p
}

func preTokenizers() []kind[preTokenizer] {
	whitespace := split{find: findEach(unicode.IsSpace), behavior: removed}
	return []kind[preTokenizer]{
		{"Sequence", newSequencePre}, {"ByteLevel", alone(newByteLevel)}, {"Split", alone(newSplit)}, {"Digits", alone(newDigits)},
		{"Punctuation", alone(newPunctuation)},
		{"Whitespace", always[preTokenizer](split{find: findWords, behavior: removed, invert: true})},
		{"WhitespaceSplit", always[preTokenizer](whitespace)},
		{"BertPreTokenizer", always[preTokenizer](sequencePre{whitespace, split{find: findEach(isPunctuation)}})},
		{"CharDelimiterSplit", alone(newCharDelimiterSplit)}, {"FixedLength", alone(newFixedLength)},
		{"UnicodeScripts", always[preTokenizer](scriptsPre{})},
		{"Metaspace", func(p part, _ int) (preTokenizer, error) { return newMetaspace(p) }},
	}
}

func parsePreTokenizerAt(raw json.RawMessage, depth int) (preTokenizer, error) {
	if isNull(raw) {
		return sequencePre(nil), nil
	}
	return parsePart(raw, depth, preTokenizers())
}

type sequencePre []preTokenizer

func newSequencePre(p part, depth int) (preTokenizer, error) {
	var fields sequenceFields
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	seq, err := parseSequence(fields.Pretokenizers, depth, parsePreTokenizerAt)
	return sequencePre(seq), err
}

type sequenceFields struct {
	Pretokenizers []json.RawMessage `json:"pretokenizers"`
}

func (q sequencePre) cut(dst []fragment, p fragment) ([]fragment, error) {
	pieces := []fragment{p}
	for _, pre := range q {
		var next []fragment
		var err error
		for _, p := range pieces {
			if next, err = pre.cut(next, p); err != nil {
				return nil, err
			}
		}
		pieces = next
	}
	return append(dst, pieces...), nil
}

// byteLevelPre cuts by GPT-2's pattern, if find is set; the bytes stay bytes, the model knows their spelling.
type byteLevelPre struct {
	find   scanner
	prefix bool // put a space before a piece that has none
	spells bool // spell the pieces in GPT-2's alphabet
}

type byteLevelFields struct {
	AddPrefixSpace *bool `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"`
}

func (f byteLevelFields) cuts() bool { return f.UseRegex == nil || *f.UseRegex }

func newByteLevel(p part) (preTokenizer, error) {
	var fields byteLevelFields
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	pre := byteLevelPre{prefix: fields.AddPrefixSpace == nil || *fields.AddPrefixSpace}
	if fields.cuts() {
		pre.find = scanGPT2
	}
	return pre, nil
}

func (b byteLevelPre) cut(dst []fragment, p fragment) ([]fragment, error) {
	if b.prefix && !strings.HasPrefix(p.text, " ") {
		p = p.prepended(" ")
	}
	from := len(dst)
	if b.find == nil {
		dst = append(dst, p)
	} else {
		var err error
		if dst, err = b.find.cut(dst, p); err != nil {
			return nil, err
		}
	}
	if b.spells {
		for i, p := range dst[from:] {
			dst[from+i] = fragment{toAlphabet(p.text), len(toAlphabet(p.text[:p.front])), p.bare}
		}
	}
	return dst, nil
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

type splitFields struct {
	Pattern  *pattern `json:"pattern"`
	Behavior string   `json:"behavior"`
	Invert   bool     `json:"invert"`
}

// isolates returns the regular expression whose matches, and the texts between them, are the pieces.
func (f splitFields) isolates() (regex string, ok bool) {
	if f.Pattern == nil || f.Pattern.Regex == nil || !(f.Behavior == "Isolated" && !f.Invert || f.Behavior == "Removed" && f.Invert) {
		return "", false
	}
	return *f.Pattern.Regex, true
}

func newSplit(p part) (preTokenizer, error) {
	var fields splitFields
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if regex, ok := fields.isolates(); ok {
		if scan := scannerOf(regex); scan != nil {
			return scan, nil
		}
	}
	b, err := parseBehavior(fields.Behavior)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Type, err)
	}
	find, err := fields.Pattern.compile()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Type, err)
	}
	return split{find, b, fields.Invert}, nil
}

func parseBehavior(name string) (behavior, error) {
	for i, n := range []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"} {
		if n == name {
			return behavior(i), nil
		}
	}
	return 0, fmt.Errorf("behavior is %q: expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", name)
}

// span is a stretch of text that is a match or lies between matches.
type span struct {
	from, to int
	match    bool
}

func (q split) cut(dst []fragment, p fragment) ([]fragment, error) {
	found, err := q.find(p.text)
	if err != nil {
		return nil, err
	}
	spans := make([]span, 0, 2*len(found)+1)
	at := 0
	for _, m := range found {
		if at != m[0] {
			spans = append(spans, span{at, m[0], q.invert})
		}
		spans = append(spans, span{m[0], m[1], !q.invert}) // an empty match counts
		at = m[1]
	}
	if at != len(p.text) {
		spans = append(spans, span{at, len(p.text), q.invert})
	}
	for _, x := range q.behavior.apply(spans) {
		if x.from < x.to {
			dst = append(dst, p.slice(x.from, x.to))
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

func newMetaspace(p part) (metaspace, error) {
	var fields struct {
		Replacement    string `json:"replacement"`
		PrependScheme  string `json:"prepend_scheme"`
		AddPrefixSpace *bool  `json:"add_prefix_space"`
		Split          *bool  `json:"split"`
	}
	if err := p.read(&fields); err != nil {
		return metaspace{}, err
	}
	q := metaspace{mark: fields.Replacement, scheme: fields.PrependScheme, split: fields.Split == nil || *fields.Split}
	if utf8.RuneCountInString(q.mark) != 1 {
		return q, fmt.Errorf("%s: replacement is %q: expected one character", p.Type, q.mark)
	}
	unprefixed := fields.AddPrefixSpace != nil && !*fields.AddPrefixSpace // the older way to say it
	if q.scheme == "" {
		q.scheme = "always"
		if unprefixed {
			q.scheme = "never"
		}
	}
	switch q.scheme {
	case "always", "first", "never":
	default:
		return q, fmt.Errorf("%s: prepend_scheme is %q: expected always, first or never", p.Type, q.scheme)
	}
	if unprefixed && q.scheme != "never" {
		return q, fmt.Errorf("%s: prepend_scheme is %q, but add_prefix_space is false: expected never", p.Type, q.scheme)
	}
	return q, nil
}

func (q metaspace) cut(dst []fragment, p fragment) ([]fragment, error) {
	p = p.replace(findLiteral(p.text, " "), q.mark)
	if (q.scheme == "always" || q.scheme == "first" && p.front > 0) && !strings.HasPrefix(p.text, q.mark) {
		p = p.prepended(q.mark)
	}
	if !q.split {
		return append(dst, p), nil
	}
	literal := func(s string) ([][]int, error) { return findLiteral(s, q.mark), nil }
	return split{find: literal, behavior: mergedWithNext}.cut(dst, p)
}
