package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/gpupipe/gpupipe/internal/oniguruma"
)

// part is a tagged object that a normalizer, a pre-tokenizer or a decoder is made of. Each kind reads its own fields.
type part struct {
	Type string `json:"type"`
	raw  json.RawMessage
}

// maxDepth bounds Sequences within Sequences.
const maxDepth = 8

func readPart(raw json.RawMessage, depth int) (p part, err error) {
	if depth > maxDepth {
		return p, fmt.Errorf("a Sequence nested more than %d deep", maxDepth)
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, jsonError(err)
	}
	p.raw = raw
	return p, nil
}

// kind is a type of parts, and how one is read.
type kind[T any] struct {
	name string
	read func(p part, depth int) (T, error)
}

// alone reads a part without parts.
func alone[T any](read func(p part) (T, error)) func(part, int) (T, error) {
	return func(p part, _ int) (T, error) { return read(p) }
}

// always reads a part without fields.
func always[T any](x T) func(part, int) (T, error) {
	return func(part, int) (T, error) { return x, nil }
}

// parsePart parses a part of one of some kinds.
func parsePart[T any](raw json.RawMessage, depth int, kinds []kind[T]) (made T, err error) {
	p, err := readPart(raw, depth)
	if err != nil {
		return made, err
	}
	names := make([]string, len(kinds))
	for i, k := range kinds {
		if names[i] = k.name; k.name == p.Type {
			return k.read(p, depth)
		}
	}
	last := len(names) - 1
	return made, fmt.Errorf("type %q is not supported: expected %s or %s", p.Type, strings.Join(names[:last], ", "), names[last])
}

// parseSequence parses the parts of a Sequence.
func parseSequence[T any](parts []json.RawMessage, depth int, parse func(raw json.RawMessage, depth int) (T, error)) (all []T, err error) {
	for i, raw := range parts {
		x, err := parse(raw, depth+1)
		if err != nil {
			return nil, fmt.Errorf("number %d: %w", i, err)
		}
		all = append(all, x)
	}
	return all, nil
}

// read reads the fields of a part, of which some are required.
func (p part) read(fields any, required ...string) error {
	var all map[string]json.RawMessage
	err := json.Unmarshal(p.raw, &all)
	for _, key := range required {
		if isNull(all[key]) {
			return fmt.Errorf("%s: no %q", p.Type, key)
		}
	}
	if err == nil {
		err = json.Unmarshal(p.raw, fields)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.Type, jsonError(err))
	}
	return nil
}

// replacement are the fields of a Replace, which is a normalizer and a decoder.
type replacement struct {
	Pattern *pattern `json:"pattern"`
	Content string   `json:"content"`
}

func (p part) readReplace() (r replacement, find finder, err error) {
	if err := p.read(&r); err != nil {
		return r, nil, err
	}
	if find, err = r.Pattern.compile(); err != nil {
		return r, nil, fmt.Errorf("%s: %w", p.Type, err)
	}
	return r, find, nil
}

// pattern is {"String": "…"} or {"Regex": "…"}.
type pattern struct {
	String *string
	Regex  *string
}

// finder returns the non-overlapping matches in s as pairs of byte offsets, in order.
type finder func(s string) ([][]int, error)

func (p *pattern) compile() (finder, error) {
	switch {
	case p == nil || (p.String == nil) == (p.Regex == nil):
		return nil, errors.New(`pattern: expected {"String": …} or {"Regex": …}`)
	case p.String != nil:
		if *p.String == "" {
			return nil, errors.New("pattern: an empty string")
		}
		return func(s string) ([][]int, error) { return findLiteral(s, *p.String), nil }, nil
	}
	return regexFinder(*p.Regex)
}

// regexFinder compiles a pattern in Oniguruma's syntax, which Hugging Face's tokenizers uses.
func regexFinder(expr string) (finder, error) {
	re, err := oniguruma.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", expr, err)
	}
	return func(s string) ([][]int, error) {
		found, err := re.FindAll(s)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", expr, err)
		}
		return found, nil
	}, nil
}

func findLiteral(s, lit string) (found [][]int) {
	for at := 0; ; {
		i := strings.Index(s[at:], lit)
		if i < 0 {
			return found
		}
		found = append(found, []int{at + i, at + i + len(lit)})
		at += i + len(lit)
	}
}

// replace writes with in place of each match.
func (p fragment) replace(found [][]int, with string) fragment {
	var w strings.Builder
	at, front := 0, 0
	keep := func(to int) {
		w.WriteString(p.text[at:to])
		front += max(min(p.front, to)-at, 0)
	}
	for _, m := range found {
		keep(m[0])
		w.WriteString(with)
		if at = m[1]; at <= p.front {
			front += len(with)
		}
	}
	keep(len(p.text))
	return fragment{w.String(), front, p.bare}
}

// normalizer rewrites a section of text.
type normalizer func(p fragment) (fragment, error)

// byCharacter is the normalizer of a function that looks at characters one by one.
func byCharacter(f func(string) string) normalizer {
	return func(p fragment) (fragment, error) {
		if p.front > 0 {
			p.front = len(f(p.text[:p.front]))
		}
		p.text = f(p.text)
		return p, nil
	}
}

// inForm is the normalizer of a normal form.
func inForm(form norm.Form) normalizer {
	f := normalForm(form)
	return func(p fragment) (fragment, error) {
		out := f(p.text)
		if p.front > 0 {
			if first := f(p.text[:p.front]); strings.HasPrefix(out, first) {
				p.front = len(first)
			} else { // what follows is composed with it
				p.front = charLen(out)
			}
		}
		p.text = out
		return p, nil
	}
}

func normalizers() []kind[normalizer] {
	return []kind[normalizer]{
		{"Sequence", normalizerSequence}, {"Prepend", alone(newPrepend)}, {"Replace", alone(newReplace)},
		{"Precompiled", alone(newPrecompiled)}, {"NFC", always(inForm(norm.NFC))}, {"NFD", always(inForm(norm.NFD))},
		{"NFKC", always(inForm(norm.NFKC))}, {"NFKD", always(inForm(norm.NFKD))}, {"Nmt", always(byCharacter(neuralTranslation))},
		{"StripAccents", always(byCharacter(func(s string) string { return without(s, characters().Sets.Mark.has) }))},
		{"Lowercase", always(byCharacter(lower))}, {"BertNormalizer", alone(newBertNormalizer)},
		{"ByteLevel", always(byCharacter(toAlphabet))}, {"Strip", alone(newStrip)},
	}
}

func parseNormalizer(raw json.RawMessage, depth int) (normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	return parsePart(raw, depth, normalizers())
}

func normalizerSequence(p part, depth int) (normalizer, error) {
	var fields struct {
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	list, err := parseSequence(fields.Normalizers, depth, parseNormalizer)
	if err != nil {
		return nil, err
	}
	return inOrder(slices.DeleteFunc(list, func(n normalizer) bool { return n == nil })...), nil
}

// inOrder applies normalizers one after the other.
func inOrder(list ...normalizer) normalizer {
	return func(p fragment) (fragment, error) {
		var err error
		for _, n := range list {
			if p, err = n(p); err != nil {
				return p, err
			}
		}
		return p, nil
	}
}

func newPrepend(p part) (normalizer, error) {
	var fields struct {
		Prepend string `json:"prepend"`
	}
	if err := p.read(&fields); err != nil {
		return nil, err
	}
	if fields.Prepend == "" { // Hugging Face's library makes later normalizers skip the first character
		return nil, fmt.Errorf("%s: prepend is empty", p.Type)
	}
	return func(p fragment) (fragment, error) {
		if p.text == "" {
			return p, nil
		}
		return p.prepended(fields.Prepend), nil
	}, nil
}

func newReplace(p part) (normalizer, error) {
	r, find, err := p.readReplace()
	if err != nil {
		return nil, err
	}
	kind := p.Type
	return func(p fragment) (fragment, error) {
		if p.text == "" {
			return p, nil
		}
		found, err := find(p.text)
		switch {
		case err != nil || len(found) == 0:
			return p, err
		case found[0][1] == 0 && r.Content != "": // Hugging Face's library doubles text in what follows
			return p, fmt.Errorf("%s: the pattern matches nothing at the start of %.20q: expected a match with characters", kind, p.text)
		}
		return p.replace(found, r.Content), nil
	}, nil
}

func newStrip(p part) (normalizer, error) {
	var fields struct {
		Left  bool `json:"strip_left"`
		Right bool `json:"strip_right"`
	}
	if err := p.read(&fields, "strip_left", "strip_right"); err != nil {
		return nil, err
	}
	return func(p fragment) (fragment, error) {
		from, to := 0, len(p.text)
		if fields.Left {
			from = to - len(strings.TrimLeftFunc(p.text, unicode.IsSpace))
		}
		if fields.Right {
			to = max(from, len(strings.TrimRightFunc(p.text, unicode.IsSpace)))
		}
		bare := p.bare
		p = p.slice(from, to)
		p.bare = bare
		return p, nil
	}, nil
}
