package hook_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shingles is the set of a text's runs of five words.
func shingles(text string) map[string]bool {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r < 128 && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	set := map[string]bool{}
	for i := range max(1, len(words)-4) {
		set[strings.Join(words[i:min(i+5, len(words))], " ")] = true
	}
	return set
}

// library finds, among texts that were added, the share of shingles that one has in common with the most similar.
type library struct {
	sizes []int
	with  map[string][]int // texts that have a shingle
}

func (l *library) add(set map[string]bool) {
	for s := range set {
		l.with[s] = append(l.with[s], len(l.sizes))
	}
	l.sizes = append(l.sizes, len(set))
}

func (l *library) jaccard(set map[string]bool) (most float64) {
	common := map[int]int{}
	for s := range set {
		for _, i := range l.with[s] {
			common[i]++
		}
	}
	for i, n := range common {
		most = max(most, float64(n)/float64(len(set)+l.sizes[i]-n))
	}
	return most
}

// sentences is a text of n words.
func sentences(rng *rand.Rand, n int) []string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf("%s%s", []string{"lo", "Ma", "ké", "ti", "ru", "9"}[rng.IntN(6)],
			[]string{"na", "do,", "se", "fi.", "wu", "x-y"}[rng.IntN(6)])
	}
	return words
}

// nearly is a text with some of its words replaced.
func nearly(rng *rand.Rand, words []string, share float64) []string {
	out := append([]string{}, words...)
	for i := range out {
		if rng.Float64() < share {
			out[i] = fmt.Sprint("other", rng.IntN(1000))
		}
	}
	return out
}

// deduplicator is deduplicate.wasm as it maps document after document.
func deduplicator(t testing.TB, config string) func(i int, text string) []string {
	t.Helper()
	m := load(t, newHost(t), hook.Spec{File: examples + "deduplicate.wasm", Hook: hook.MapDocument, Config: []byte(config)})
	p := m.Mapper(1)
	t.Cleanup(p.Close)
	return func(i int, text string) (out []string) {
		got, err := p.Map(ctx, i, []byte(text))
		require.NoError(t, err)
		for _, g := range got {
			out = append(out, string(g))
		}
		return out
	}
}

// Near-duplicates of all degrees, against the exact share of shingles that they have in common with a document that was
// kept.
func TestDeduplicateAgainstExactJaccard(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for range 250 {
		words := sentences(rng, 40+rng.IntN(500))
		texts = append(texts, strings.Join(words, " "))
		for range 4 {
			texts = append(texts, strings.Join(nearly(rng, words, 0.12*rng.Float64()*rng.Float64()), " "))
		}
	}
	rng.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	dedup := deduplicator(t, `{"threshold": 0.8}`)
	kept := library{with: map[string][]int{}}
	var found, missed, wronged, clear, unclear int // duplicates found and missed, others dropped; wrong where the share is far from 0.8
	for i, text := range texts {
		set := shingles(text)
		most := kept.jaccard(set)
		out := dedup(i, text)
		dropped := len(out) == 0
		if !dropped {
			require.Equal(t, []string{text}, out)
			kept.add(set)
		}
		if dropped != (most >= 0.8) {
			unclear++
			if most > 0.9 || most < 0.7 {
				clear++
			}
		}
		switch {
		case dropped && most >= 0.8:
			found++
		case dropped:
			wronged++
		case most >= 0.8:
			missed++
		}
	}
	t.Logf("%d of %d kept; duplicates: %d found, %d missed, %d that are none", len(kept.sizes), len(texts), found, missed, wronged)
	assert.Greater(t, found, 300)
	assert.Greater(t, len(kept.sizes), 400)
	assert.Greater(t, float64(found)/float64(found+missed), 0.93, "recall")
	assert.Greater(t, float64(found)/float64(found+wronged), 0.93, "precision")
	assert.Less(t, float64(clear)/float64(len(texts)), 0.005, "wrong where there is no doubt")
}

func TestDeduplicateForgetsTheOldest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var texts []string
	for range 40 {
		texts = append(texts, strings.Join(sentences(rng, 100), " "))
	}
	for _, memory := range []int{1, 7, 40} {
		dedup := deduplicator(t, fmt.Sprintf(`{"documents": %d}`, memory))
		for i, text := range texts {
			assert.Len(t, dedup(i, text), 1)
			ago := max(0, i-memory+1)
			assert.Empty(t, dedup(i, texts[ago]), "%d documents back", i-ago)
		}
		if memory < 40 {
			assert.Len(t, dedup(40, texts[40-memory-1]), 1, "forgotten")
		}
	}
}

func TestDeduplicateWhatCounts(t *testing.T) {
	dedup := deduplicator(t, `{}`)
	for i, c := range []struct {
		text string
		kept bool
	}{
		{"One, two: three", true}, {"one two THREE!", false}, {"one two four", true}, {"one two three four five six", true},
		{"one  two\nthree-four five six", false}, {"...", true}, {"...", true}, {"", false}, {"één twee", true}, {"één twee", false},
	} {
		assert.Equal(t, c.kept, len(dedup(i, c.text)) == 1, "%q", c.text)
	}
	lines := deduplicator(t, `{"split": "\n"}`)
	assert.Equal(t, []string{"a b c\n\nd e f\n\n"}, lines(0, "a b c\n\nd e f\nA B C\n\n"))
	assert.Equal(t, []string{"g"}, lines(1, "d e f\ng"))
	assert.Empty(t, lines(2, "g"))
}

func TestDeduplicateRefusesConfigs(t *testing.T) {
	for config, want := range map[string]string{
		`{"threshold": 0}`:        "failed: threshold: expected a number above 0",
		`{"documents": 0}`:        "failed: documents: expected a number from 1 to 2^24",
		`{"documents": 16000000}`: "then: documents: too many for the module's memory: raise memory_mb",
		`{"split": 1}`:            "failed: split is not a text",
	} {
		m := load(t, newHost(t), hook.Spec{File: examples + "deduplicate.wasm", Hook: hook.MapDocument, Config: []byte(config)})
		p := m.Mapper(1)
		_, err := p.Map(ctx, 0, []byte("text"))
		assert.ErrorContains(t, err, want, config)
		p.Close()
	}
}

// The target is at least 50 MB/s.
func BenchmarkDeduplicate(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, words := range []int{25, 500} {
		b.Run(fmt.Sprint(words, " words"), func(b *testing.B) {
			m := load(b, newHost(b), hook.Spec{File: examples + "deduplicate.wasm", Hook: hook.MapDocument})
			p := m.Mapper(1)
			defer p.Close()
			var texts [][]byte
			for range 1000 {
				texts = append(texts, []byte(strings.Join(sentences(rng, words), " ")))
			}
			b.SetBytes(int64(len(texts[0])))
			for i := 0; b.Loop(); i++ {
				if _, err := p.Map(context.Background(), i, texts[i%1000]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
