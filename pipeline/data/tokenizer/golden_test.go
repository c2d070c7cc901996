package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldens are the encodings of Hugging Face's library.
type goldens struct {
	Texts      []string
	Tokenizers map[string][]*struct { // nil: not compared
		IDs  []uint32
		Text *string // nil: as the input
	}
}

func readGoldens(t *testing.T, path string) (g goldens) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// check compares the encodings and decodings of the tokenizers in a folder.
func (g goldens) check(t *testing.T, folder string) {
	for name, rows := range g.Tokenizers {
		t.Run(name, func(t *testing.T) {
			if filepath.Ext(name) == "" {
				name += ".json"
			}
			tok, err := Open(filepath.Join(folder, name))
			require.NoError(t, err)
			require.Len(t, rows, len(g.Texts))
			for i, want := range rows {
				if want == nil {
					continue
				}
				in := g.Texts[i]
				ids, err := tok.Encode([]byte(in))
				require.NoError(t, err, "%q", in)
				require.Equal(t, append([]uint32{}, want.IDs...), append([]uint32{}, ids...), "%q", in)
				if want.Text == nil {
					want.Text = &in
				}
				back, err := tok.Decode(ids)
				require.NoError(t, err)
				require.Equal(t, *want.Text, string(back), "%q", in)
			}
		})
	}
}

// testdata/make_goldens.py wrote golden.json.
func TestGoldenEncodings(t *testing.T) {
	g := readGoldens(t, "testdata/golden.json")
	require.Len(t, g.Tokenizers, 6)
	g.check(t, "testdata")
}

// testdata/make_unigram_goldens.py wrote golden_unigram.json: T5's normalizer and pre-tokenizer, ALBERT's, and whole
// texts as one word with byte fallback. Those of tokenizer.model are SentencePiece's own.
func TestGoldenUnigramEncodings(t *testing.T) {
	g := readGoldens(t, "testdata/golden_unigram.json")
	require.Len(t, g.Tokenizers, 5)
	g.Texts = readGoldens(t, "testdata/golden.json").Texts
	g.check(t, "testdata")
}
