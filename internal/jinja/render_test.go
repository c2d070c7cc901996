package jinja

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// casesFile holds cases that docs/oracle/interop/chat_templates.py writes, with what transformers renders.
var casesFile = flag.String("cases", "testdata/cases.jsonl", "file with cases of docs/oracle/interop/chat_templates.py")

// now is the time that the script gives to templates.
var now = time.Date(2024, 7, 6, 15, 4, 5, 0, time.UTC)

// line is a line of the file: a definition or a case.
type line struct {
	Define    string          `json:"define"`
	File      string          `json:"file"`
	Name      string          `json:"name"`
	Text      string          `json:"text"`
	Template  string          `json:"template"`
	Variables json.RawMessage `json:"variables"`
	Want      *string         `json:"want"` // nil: transformers fails
}

// Texts are transformers' to the byte, or refused; what transformers refuses is refused. Of the templates of families
// none is refused that transformers renders.
func TestTransformersRenderings(t *testing.T) {
	f, err := os.Open(*casesFile)
	require.NoError(t, err)
	defer f.Close()
	templates, variables := map[string]string{}, map[string]*Dict{}
	cases, refused := 0, 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var l line
		require.NoError(t, json.Unmarshal(lines.Bytes(), &l))
		if l.Define != "" {
			define(t, l, templates, variables)
			continue
		}
		var name string
		require.NoError(t, json.Unmarshal(l.Variables, &name))
		text := l.Text
		if text == "" {
			text = templates[l.Template]
		}
		cases++
		got, err := rendered(text, variables[name])
		switch {
		case err != nil && l.Want != nil && l.Text == "":
			t.Errorf("%s: %v, expected %q", l.Name, err, *l.Want)
		case err != nil && l.Want != nil:
			refused++
			t.Logf("refused %s %q: %v", l.Name, text, err)
		case err == nil && l.Want == nil:
			t.Errorf("%s %q: found %q, expected an error", l.Name, text, got)
		case err == nil && got != *l.Want:
			t.Errorf("%s %q: found\n%q, expected\n%q", l.Name, text, got, *l.Want)
		}
	}
	require.NoError(t, lines.Err())
	t.Logf("%d cases, of which %d are refused", cases, refused)
	assert.Less(t, refused*50, cases)
}

func define(t *testing.T, l line, templates map[string]string, variables map[string]*Dict) {
	t.Helper()
	switch {
	case l.File != "":
		text, err := os.ReadFile(filepath.Join("testdata", l.File))
		require.NoError(t, err)
		templates[l.Define] = string(text)
	case l.Template != "":
		templates[l.Define] = l.Template
	default:
		v, err := Decode(l.Variables)
		require.NoError(t, err)
		variables[l.Define] = v.(*Dict)
	}
}

func rendered(text string, variables *Dict) (string, error) {
	t, err := Parse(text)
	if err != nil {
		return "", err
	}
	return t.Render(variables, now)
}

// What is not here is refused by name, when the template is read where that is known then.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"{% include 'x' %}":       "line 1: the tag include is not supported",
		"\n{% import 'x' as y %}": "line 2: the tag import is not supported",
		"{% extends 'x' %}":       "the tag extends is not supported", "{{ x | random }}": `the filter "random" is not supported`,
		"{{ x is escaped }}": `the test "escaped" is not supported`, "{% nothing %}": `found the tag "nothing"`,
		"{{ x":       "expected the end of the tag",
		"{% if x %}": "expected the tag elif or else or endif", "{{ 1 + }}": "found the end of the tag, expected an expression",
		"{# x":                       "a comment has no end",
		"{{ 99999999999999999999 }}": "more than 64 bits", "{{ 'x }}": "a string has no end",
	} {
		_, err := Parse(text)
		assert.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		"{{ x.y }}": "'x' is undefined", "{{ raise_exception('no') }}": "no",
		"{{ [].append(1) }}": "the attribute 'append' of a list is not supported",
		"{{ 'x'.encode() }}": "the attribute 'encode' of a str is not supported", "{{ ''.__class__ }}": "unsafe",
		"{{ range(1000000) }}": "range too big",
		"{{ '%x' % 3 }}":       "the format %x is not supported", "{{ strftime_now('%U') }}": "the format %U of strftime_now is not supported",
		"{{ lipsum() }}": "lipsum",
	} {
		_, err := rendered(text, &Dict{})
		assert.ErrorContains(t, err, want, text)
	}
}

// Templates that would compute, write or nest without end are errors.
func TestLimits(t *testing.T) {
	nested := func(n int, begin, middle, end string) string {
		return strings.Repeat(begin, n) + middle + strings.Repeat(end, n)
	}
	for _, text := range []string{
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"{{ 'x' * 10000000000 }}", "{{ [0] * 10000000000 }}",
		"{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"{% set n = namespace(l=[]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
		"{% set n = namespace(l=[]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l|tojson }}",
		"{% set n = namespace(l=[], k=[]) %}{% for i in range(90) %}{% set n.l = [n.l, n.l] %}{% set n.k = [n.k, n.k] %}{% endfor %}{{ n.l == n.k }}",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% for i in [1] recursive %}{{ loop([i]) }}{% endfor %}",
		"{{ 2 ** 1000000000 }}",
		"{{ '%1000000000d' % 3 }}", "{{ 'x'.ljust(100000000000) }}", "{{ ('x' * 9999999).replace('x', 'xxxxxxxxxx') }}",
		"{{ 'x' | indent(10000000000) }}" + "{{ [['x' * 1000000] * 1000000] }}",
		nested(100000, "(", "{{", ""), "{{ " + nested(100000, "(", "1", ")") + " }}", "{{ " + nested(100000, "[", "", "]") + " }}",
		"{{ " + nested(100000, "not ", "1", "") + " }}",
		"{{ " + nested(100000, "-", "1", "") + " }}", "{{ 1" + nested(100000, "", "", "+1") + " }}", "{{ x" +
			nested(100000, "", "", ".x") + " }}", "{{ x" + nested(100000, "", "", "|list") + " }}",
		nested(100000, "{% if x %}", "", "{% endif %}"), "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
	} {
		_, err := rendered(text, &Dict{})
		if text[0] != '(' { // which is text
			assert.Error(t, err, "%.60s", text)
		}
		if err != nil {
			assert.NotContains(t, err.Error(), "internal error", "%.60s", text)
		}
	}
}

// Any text is a template or an error.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"{{ x[1:2] }}", "{% for a, b in x %}{{ a|f(1) }}{% endfor %}", "{%- raw -%}x{% endraw %}", "{# #}",
		"{{ {'a': 1}.b }}", "{% set x.y = '\\x41' %}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := rendered(text, &Dict{}); err != nil {
			assert.NotContains(t, err.Error(), "internal error")
		}
	})
}
