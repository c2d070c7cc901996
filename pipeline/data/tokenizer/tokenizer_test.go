package tokenizer

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goSource is real text: this package's own source, without the special tokens that it spells.
func goSource(t testing.TB) []byte {
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var text []byte
	for _, p := range paths {
		data, err := os.ReadFile(p)
		require.NoError(t, err)
		text = append(text, data...)
	}
	return bytes.ReplaceAll(text, []byte("<|"), []byte("<"))
}

func open(t testing.TB, spec string) Tokenizer {
	tok, err := Open(spec)
	require.NoError(t, err)
	return tok
}

// randomText mixes words, runs of spaces, digits, many scripts and, if asked, bytes that are not UTF-8.
func randomText(rng *rand.Rand, n int, invalid bool) []byte {
	pool := []string{"the", "The", " ", "  ", "\n", "\n\n", "\t", "'s", "'LL", "12", "3456", ".", "...", "==", "é", "e\u0301", "ß", "中文",
		"мир", "👩‍👩‍👧", "\u00a0", "x", "Zz", "\r\n", "<|", "▁", "\x00"}
	if invalid {
		pool = append(pool, "\xff", "\xc3", "\xe4\xb8", "\x80")
	}
	var b bytes.Buffer
	for range n {
		b.WriteString(pool[rng.IntN(len(pool))])
	}
	return b.Bytes()
}

func TestBytes(t *testing.T) {
	tok := open(t, "bytes")
	assert.Equal(t, 256, tok.VocabSize())
	_, ok := tok.EOS()
	assert.False(t, ok)
	_, err := tok.Decode([]uint32{1, 256})
	assert.ErrorContains(t, err, "token 256 at position 1 is outside the vocabulary of 256")

	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	exported, err := parse("exported", tok.JSON(), description{})
	require.NoError(t, err)
	assert.Equal(t, 256, exported.VocabSize())
	for _, x := range []Tokenizer{tok, exported} {
		ids, err := x.Encode(all)
		require.NoError(t, err)
		for i, id := range ids {
			require.Equal(t, uint32(i), id)
		}
		back, err := x.Decode(ids)
		require.NoError(t, err)
		assert.Equal(t, all, back)
	}
}

func TestGPT2(t *testing.T) {
	tok := open(t, "gpt2")
	assert.Equal(t, 50257, tok.VocabSize())
	eos, ok := tok.EOS()
	assert.True(t, ok)
	assert.Equal(t, uint32(50256), eos)
	ids, err := tok.Encode([]byte("Hello, world!<|endoftext|> The quick brown fox"))
	require.NoError(t, err)
	assert.Equal(t, []uint32{15496, 11, 995, 0, 50256, 383, 2068, 7586, 21831}, ids)

	raw, err := os.ReadFile("testdata/golden_gpt2.json")
	require.NoError(t, err)
	var golden []struct {
		Text string
		IDs  []uint32
	}
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.Len(t, golden, 120)
	for _, g := range golden {
		got, err := tok.Encode([]byte(g.Text))
		require.NoError(t, err)
		require.Equal(t, g.IDs, got, "%.80q", g.Text)
	}
	assert.Equal(t, tok.Hash(), open(t, "gpt2").Hash())
	assert.NotEqual(t, tok.Hash(), open(t, "bytes").Hash())
}

// Byte-level tokenizers reproduce every byte, also of invalid UTF-8.
func TestRoundTripOfAnyBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, spec := range []string{"bytes", "gpt2", "testdata/gpt2-style.json", "testdata/llama3-style.json",
		"testdata/smollm2-style.json"} {
		tok := open(t, spec)
		for range 100 {
			text := randomText(rng, rng.IntN(50), true)
			if rng.IntN(4) == 0 {
				for i := range text {
					text[i] = byte(rng.Uint32())
				}
			}
			text = bytes.ReplaceAll(text, []byte("<|tool|>"), nil) // swallows spaces, by its own rule
			ids, err := tok.Encode(text)
			require.NoError(t, err)
			back, err := tok.Decode(ids)
			require.NoError(t, err)
			require.Equal(t, string(text), string(back), spec)
			for _, id := range ids {
				require.Less(t, int(id), tok.VocabSize())
			}
		}
	}
}

// A document cut at a line break between two non-spaces encodes to the tokens of the whole.
func TestEncodingADocumentInPieces(t *testing.T) {
	text := goSource(t)[:20_000]
	for _, spec := range []string{"bytes", "gpt2", "testdata/gpt2-style.json", "testdata/llama3-style.json",
		"testdata/smollm2-style.json", "testdata/llama2-style.json", "testdata/metaspace-style.json",
		"testdata/t5-style.json", "testdata/llama-unigram-style.json", "testdata/sentencepiece-unigram.model"} {
		tok := open(t, spec)
		whole, err := tok.Encode(text)
		require.NoError(t, err)
		var parts []uint32
		from, n := 0, 0
		for i := 1; i < len(text); i++ {
			space := func(b byte) bool { return strings.IndexByte(" \t\r\n", b) >= 0 }
			if i == len(text)-1 || i > from+100 && text[i-1] == '\n' && !space(text[i-2]) && !space(text[i]) {
				if i == len(text)-1 {
					i++
				}
				ids, err := tok.EncodePart(text[from:i], from == 0)
				require.NoError(t, err)
				parts, from, n = append(parts, ids...), i, n+1
			}
		}
		require.Greater(t, n, 30)
		require.Equal(t, whole, parts, spec)
	}
}

func TestEncodeIsSafeForConcurrentUse(t *testing.T) {
	tok := open(t, "testdata/llama3-style.json")
	text := goSource(t)[:5_000]
	want, err := tok.Encode(text)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				got, err := tok.Encode(text)
				assert.NoError(t, err)
				assert.Equal(t, want, got)
			}
		})
	}
	wg.Wait()
}

// Merging by heap and by scan agree, and so does cutting a word where no merge joins.
func TestMergesAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, spec := range []string{"testdata/gpt2-style.json", "testdata/llama2-style.json"} {
		m := open(t, spec).(*fileTokenizer).model.(*bpe)
		require.NotNil(t, m.joins)
		plain := *m
		plain.joins = nil
		for range 300 {
			text := strings.ReplaceAll(string(randomText(rng, 1+rng.IntN(40), false))+strings.Repeat("ab", rng.IntN(4))+"thethehe", " ",
				"▁")
			a, err := m.symbols(nil, text)
			require.NoError(t, err)
			s := &scratch{cache: map[string][]uint32{}}
			heap := append([]uint32{}, plain.mergeHeap(append([]uint32{}, a...), s)...)
			for len(a) > 0 { // the plainest form of the algorithm
				best, at := merge{rank: 1 << 31}, -1
				for i := range len(a) - 1 {
					if c, ok := m.merges[pairKey(a[i], a[i+1])]; ok && c.rank < best.rank {
						best, at = c, i
					}
				}
				if at < 0 {
					break
				}
				a = append(a[:at], append([]uint32{best.id}, a[at+2:]...)...)
			}
			require.Equal(t, a, heap, "%q", text)
			cut, err := m.encode(nil, text, s)
			require.NoError(t, err)
			require.Equal(t, a, cut, "%q", text)
		}
	}
}

// Of overlapping pairs the leftmost is merged first.
func TestOverlappingPairs(t *testing.T) {
	m := &bpe{merges: map[uint64]merge{pairKey(0, 0): {rank: 0, id: 1}}}
	for _, apply := range []func([]uint32, *scratch) []uint32{m.merge, m.mergeHeap} {
		assert.Equal(t, []uint32{1, 1, 0}, apply(make([]uint32, 5), &scratch{}))
	}
}

func TestEOS(t *testing.T) {
	for spec, want := range map[string]string{"gpt2-style": "<|endoftext|>", "llama3-style": "<|end_of_text|>", "llama2-style": "</s>",
		"suffix-style": "<eos>"} {
		tok := open(t, "testdata/"+spec+".json")
		id, ok := tok.EOS()
		require.True(t, ok, spec)
		text, err := tok.Decode([]uint32{id})
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
}

func TestEOSOfTokenizerConfig(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile("testdata/smollm2-style.json")
	require.NoError(t, err)
	path := filepath.Join(dir, "tokenizer.json")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	config := func(s string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(s), 0o644))
	}
	for _, c := range []string{`{"eos_token":"<|im_end|>"}`, `{"eos_token":{"content":"<|im_end|>","lstrip":false}}`} {
		config(c)
		id, ok := open(t, path).EOS()
		assert.True(t, ok)
		assert.Equal(t, uint32(2), id)
	}
	config(`{"eos_token":null}`)
	id, _ := open(t, path).EOS()
	assert.Equal(t, uint32(0), id)
	for c, want := range map[string]string{
		`{"eos_token":3}`: "eos_token is 3: expected a string",
		`{`:               "tokenizer_config.json: ",
	} {
		config(c)
		_, err := Open(path)
		assert.ErrorContains(t, err, want)
	}
}

func BenchmarkEncode(b *testing.B) {
	text := goSource(b)
	for _, spec := range []string{"gpt2", "testdata/llama3-style.json", "testdata/llama2-style.json"} {
		tok := open(b, spec)
		b.Run(filepath.Base(spec), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := tok.Encode(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
