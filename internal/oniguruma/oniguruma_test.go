package oniguruma

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pieces cuts a text before and after each match, as the pre-tokenizer Split does.
func pieces(t *testing.T, re *Regexp, s string) []string {
	found, err := re.FindAll(s)
	require.NoError(t, err)
	out, at := []string{}, 0
	for _, m := range append(found, []int{len(s), len(s)}) {
		for _, piece := range []string{s[at:m[0]], s[m[0]:m[1]]} {
			if piece != "" {
				out = append(out, piece)
			}
		}
		at = m[1]
	}
	return out
}

// Patterns of public tokenizers and others of a grammar cut texts as Hugging Face's tokenizers does.
// docs/oracle/interop/tokenizer_patterns.py --golden writes the file.
func TestPieces(t *testing.T) {
	data, err := os.ReadFile("testdata/pieces.json")
	require.NoError(t, err)
	var rows []struct {
		Pattern string
		Refused bool
		Cases   [][]string
	}
	require.NoError(t, json.Unmarshal(data, &rows))
	equal := 0
	for _, row := range rows {
		re, err := Compile(row.Pattern)
		if row.Refused {
			assert.Error(t, err, row.Pattern)
		}
		if err != nil {
			continue
		}
		for _, c := range row.Cases {
			assert.Equal(t, append([]string{}, c[1:]...), pieces(t, re, c[0]), "%q", row.Pattern)
			equal++
		}
	}
	assert.Greater(t, equal, 700)
}

// What the package lacks is refused by name.
func TestRefused(t *testing.T) {
	for pattern, reason := range map[string]string{
		"(?~abc)": "absent operator", "(?(1)a|b)": "conditional", `(a)\g<1>`: "call of a group", "(?{x})": "callout", "(*FAIL)": "callout",
		`(?i:(a)\1)`: "back reference that ignores case", "(?I)a": "whole pattern", `\x{61 62}`: "several characters", "(?s:.)": "option",
		`\p{Nope}`: `the property "Nope"`, "[[:nope:]]": "[:nope:]", "[z-a]": "the range z-a", "[a": "without its ]",
		"(a": "without its )", "a)": "without its group",
		"*a": "quantifier without", "^*": "quantifier of an anchor", `a\`: `\ at the end`,
		`(?:a?b?){2}`: "the quantifier {2} of a group that can match nothing: expected", `(?:a*b*){2,3}`: "{2,3}",
		`(?:a*b?){2,}?`: "{2,}", `[\w-.]`: "begins with a set",
		"(?<=a(?=b))": "look-behind", `\2(a)`: "group 2 of 1", "[a[^\\p{Any}]]": "Oniguruma is wrong", "(?:(?:a|bb){500}){500}": "steps",
	} {
		_, err := Compile(pattern)
		assert.ErrorContains(t, err, reason, pattern)
	}
}

// A match that backtracks without end is an error.
func TestRetries(t *testing.T) {
	re, err := Compile(`(?:a|aa|aaa)*\d`)
	require.NoError(t, err)
	_, err = re.FindAll("x é" + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	assert.ErrorIs(t, err, errRetries)
	assert.EqualError(t, err, `the match of "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", at byte 4 of a piece of text, backtracks more than 10,000,000 times`)
}

func TestAnchorsAndCase(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          [][]int
	}{
		{`^`, "a\nb\n", [][]int{{0, 0}, {2, 2}}}, {`$`, "a\n", [][]int{{1, 1}, {2, 2}}}, {`a\Z`, "a\na\n", [][]int{{2, 3}}},
		{`a\z`, "aa", [][]int{{1, 2}}},
		{`\pL`, "LpL", [][]int{{1, 3}}}, {`\h+`, "xA0g", [][]int{{1, 3}}}, {`\R`, "\r\n\n", [][]int{{0, 2}, {2, 3}}},
		{`\X`, "e\u0301a", [][]int{{0, 3}, {3, 4}}},
		{`a?+a`, "aa", [][]int{{0, 2}}}, {`a++a`, "aaa", nil}, {`a{1,2}+b`, "aaaab", [][]int{{0, 5}}},
		{`(?i:s)`, "ſS", [][]int{{0, 2}, {2, 3}}},
		{`(?i:k)`, "\u212a", [][]int{{0, 3}}}, {`(?i:ss)`, "ß", [][]int{{0, 2}}}, {`(?i:ß)`, "sS", [][]int{{0, 2}}},
		{`(?i:[ß])`, "ss", [][]int{{0, 2}}},
		{`[a-z&&[^aeiou]]+`, "abcde", [][]int{{1, 4}}}, {`a(?i)b|c`, "aBaC", [][]int{{0, 2}, {2, 4}}},
		{`(?<=a|bc)d`, "adbcdd", [][]int{{1, 2}, {4, 5}}},
		{`a\Kb`, "ab", [][]int{{1, 2}}}, {`(a|b)\1`, "abb", [][]int{{1, 3}}}, {`(?x) a b # c`, "ab", [][]int{{0, 2}}},
		{`(?W:\w+)`, "aé", [][]int{{0, 1}}},
	} {
		re, err := Compile(c.pattern)
		require.NoError(t, err, c.pattern)
		got, err := re.FindAll(c.text)
		require.NoError(t, err)
		assert.Equal(t, c.want, got, "%q in %q", c.pattern, c.text)
	}
}
