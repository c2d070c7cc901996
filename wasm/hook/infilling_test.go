package hook_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// infill maps documents, with their numbers, by fill_in_the_middle.wasm.
func infill(t *testing.T, config string, seed uint64, texts []string) (out [][]string) {
	t.Helper()
	m := load(t, newHost(t), hook.Spec{File: examples + "fill_in_the_middle.wasm", Hook: hook.MapDocument, Config: []byte(config),
		Seed: seed})
	p := m.Mapper(1)
	defer p.Close()
	for i, text := range texts {
		got, err := p.Map(ctx, i, []byte(text))
		require.NoError(t, err)
		var s []string
		for _, g := range got {
			s = append(s, string(g))
		}
		out = append(out, s)
	}
	return out
}

// parts takes a document in PSM or SPM apart; a and b are the characters at which it was cut. In SPM a document does
// not show where its prefix ends and its middle begins, so that a is 0.
func parts(t *testing.T, doc string) (text string, spm bool, a, b int) {
	t.Helper()
	rest, ok := strings.CutPrefix(doc, "<PRE>")
	require.True(t, ok, doc)
	prefix, rest, ok := strings.Cut(rest, "<SUF>")
	require.True(t, ok, doc)
	suffix, middle, ok := strings.Cut(rest, "<MID>")
	require.True(t, ok, doc)
	return prefix + middle + suffix, prefix == "", utf8.RuneCountInString(prefix), utf8.RuneCountInString(prefix + middle)
}

// characters are texts of 40 characters, of one to four bytes.
func characters(n int) (texts []string) {
	for i := range n {
		var b strings.Builder
		for j := range 40 {
			b.WriteRune([]rune("aé€𝄞")[(i+j*j)%4])
		}
		texts = append(texts, b.String())
	}
	return texts
}

// The transformation is reversible. The frequency of chosen documents, their layout and their cuts follow the paper
// (arXiv 2207.14255, section 3 and appendix D).
func TestFillInTheMiddle(t *testing.T) {
	const n = 4000
	texts := characters(n)
	var chosen, inSPM int
	var first, second, both float64
	for i, docs := range infill(t, `{"rate": 0.7, "spm": 0.4}`, 0, texts) {
		require.Len(t, docs, 1)
		if docs[0] == texts[i] {
			continue
		}
		chosen++
		text, spm, a, b := parts(t, docs[0])
		require.Equal(t, texts[i], text, "document %d", i)
		if spm {
			inSPM++
			continue
		}
		first, second, both = first+float64(a), second+float64(b), both+1
	}
	assert.InDelta(t, 0.7, float64(chosen)/n, 0.03)
	assert.InDelta(t, 0.4, float64(inSPM)/float64(chosen), 0.03, "a prefix of PSM is empty now and then")
	assert.InDelta(t, 41*81/240., first/both, 0.7, "the mean of the least of two numbers from 1 to 40")
	assert.InDelta(t, 41*159/240., second/both, 0.7, "of the greatest")
}

func TestFillInTheMiddleIsAFunctionOfSeedAndDocument(t *testing.T) {
	texts := characters(50)
	one := infill(t, `{}`, 1, texts)
	assert.Equal(t, one, infill(t, `{}`, 1, texts))
	assert.NotEqual(t, one, infill(t, `{}`, 2, texts))
	same := infill(t, `{"rate": 1}`, 1, []string{texts[0], texts[0], texts[0], texts[0]})
	assert.NotEqual(t, [][]string{same[0], same[0], same[0]}, same[1:], "the same text under other numbers")
}

func TestFillInTheMiddleAsConfigured(t *testing.T) {
	always := func(config, text string) []string { return infill(t, config, 3, []string{text})[0] }
	assert.Equal(t, []string{"whole"}, always(`{"rate": 0}`, "whole"))
	got := always(`{"rate": 1, "spm": 0, "prefix": "\u003cp\u003e", "suffix": "\n<s \"é\">", "middle": "\ud834\udd1e", "end": "</s>"}`,
		"some words")[0]
	for _, part := range []string{"<p>", "\n<s \"é\">", "𝄞", "</s>"} {
		assert.Equal(t, 1, strings.Count(got, part), "%q in %q", part, got)
	}
	assert.Less(t, strings.Index(got, "<s"), strings.Index(got, "𝄞"))
	assert.True(t, strings.HasSuffix(got, "</s>"), got)
	got = always(`{"rate": 1, "spm": 1}`, "some words")[0]
	assert.True(t, strings.HasPrefix(got, "<PRE><SUF>"), got)
	for _, text := range []string{"a <PRE> b", "<SUF>", "<MID", "x<MID>"} {
		assert.Equal(t, text != "<MID", always(`{"rate": 1}`, text)[0] == text, "%q", text)
	}

	long := strings.Join(characters(20), "")
	docs := always(`{"rate": 1, "spm": 0, "chunk": 100}`, long)
	var whole strings.Builder
	for i, d := range docs {
		text, _, _, _ := parts(t, d)
		assert.True(t, utf8.ValidString(text))
		assert.True(t, i == len(docs)-1 || len(text) >= 100 && len(text) < 104, "%d bytes", len(text))
		whole.WriteString(text)
	}
	assert.Equal(t, long, whole.String())
}

func TestFillInTheMiddleRefusesConfigs(t *testing.T) {
	for config, want := range map[string]string{
		`{"rate": 1.5}`: "rate: expected a number from 0 to 1", `{"spm": -1}`: "spm: expected",
		`{"chunk": 3}`:   "chunk: expected 0, or 16 bytes",
		`{"middle": ""}`: "prefix, suffix, middle: expected a text that is not empty", `{"prefix": 3}`: "prefix is not a text",
		`{"rate": "often"}`: "rate is not a number",
	} {
		m := load(t, newHost(t), hook.Spec{File: examples + "fill_in_the_middle.wasm", Hook: hook.MapDocument, Config: []byte(config)})
		p := m.Mapper(1)
		_, err := p.Map(ctx, 0, []byte("text"))
		assert.ErrorContains(t, err, fmt.Sprintf("fill_in_the_middle.wasm: start function: failed: %s", want), config)
		p.Close()
	}
}
