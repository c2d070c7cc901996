package tokenizer

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden.json holds the encodings of Hugging Face's library (testdata/make_goldens.py).
func TestGoldenEncodings(t *testing.T) {
	data, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var golden struct {
		Texts      []string
		Tokenizers map[string][]struct {
			IDs  []uint32
			Text *string // nil: as the input
		}
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	require.Len(t, golden.Tokenizers, 6)
	for name, rows := range golden.Tokenizers {
		t.Run(name, func(t *testing.T) {
			tok, err := Open("testdata/" + name + ".json")
			require.NoError(t, err)
			require.Len(t, rows, len(golden.Texts))
			for i, want := range rows {
				in := golden.Texts[i]
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
