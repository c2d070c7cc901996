package tokenizer

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	partsFile = flag.String("parts", "testdata/golden_parts.json", "the file that TestGoldenParts reads")

	partNames  = regexp.MustCompile(`normalizer|pre_tokenizer|model|decoder|post_processor|added_tokens`)
	replacedBy = regexp.MustCompile("\uFFFD+")
)

// docs/oracle/interop/tokenizer_parts.py --golden wrote golden_parts.json: files of random parts, with the ids and
// decoded texts of Hugging Face's library. They are equal, or the file is refused with an error that names the part.
func TestGoldenParts(t *testing.T) {
	raw, err := os.ReadFile(*partsFile)
	require.NoError(t, err)
	var rows []struct {
		Tokenizer json.RawMessage
		Texts     []string
		IDs       [][]uint32
		Decoded   []*string
	}
	require.NoError(t, json.Unmarshal(raw, &rows))
	equal, same, refused := map[string]int{}, 0, 0
	for n, row := range rows {
		tok, err := parse("test", row.Tokenizer, description{})
		var front, back []uint32
		if err == nil {
			if front, back, err = Around(tok); err != nil {
				err = fmt.Errorf("post_processor: %w", err)
			}
		}
		if err != nil {
			assert.Regexp(t, partNames, err)
			refused++
			continue
		}
		for i, text := range row.Texts {
			ids, err := tok.Encode([]byte(text))
			if err != nil {
				assert.Regexp(t, partNames, err)
				continue
			}
			if row.IDs[i] == nil {
				continue
			}
			require.Equal(t, row.IDs[i], append([]uint32{}, slices.Concat(front, ids, back)...), "%d: %q\n%s", n, text, row.Tokenizer)
			decoded, err := tok.Decode(row.IDs[i])
			require.NoError(t, err)
			if row.Decoded[i] != nil {
				require.Equal(t, plainText(*row.Decoded[i]), plainText(string(decoded)), "%d: %q\n%s", n, text, row.Tokenizer)
			}
			same++
			for _, name := range regexp.MustCompile(`"type": ?"(\w+)"`).FindAllStringSubmatch(string(row.Tokenizer), -1) {
				equal[name[1]]++
			}
		}
	}
	t.Logf("%d files: %d texts with equal ids and decoded texts, none different; %d files refused by the name of a part", len(rows), same,
		refused)
	for _, name := range strings.Fields("NFC NFD NFKC NFKD Lowercase Strip StripAccents Replace Prepend BertNormalizer Precompiled ByteLevel Nmt Sequence " +
		"Whitespace WhitespaceSplit BertPreTokenizer Punctuation Digits Metaspace CharDelimiterSplit UnicodeScripts FixedLength Split " +
		"BPE Unigram WordPiece WordLevel TemplateProcessing BertProcessing RobertaProcessing BPEDecoder ByteFallback Fuse CTC") {
		assert.Greater(t, equal[name], 5, name)
	}
}

// plainText counts bytes in a row that are no UTF-8 once: Hugging Face's decoders write a sign for each of them.
func plainText(s string) string {
	return replacedBy.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), "\uFFFD")
}

// Falcon's pre-tokenizer cuts on behind ByteLevel, in GPT-2's alphabet. The ids are those of tokenizers 0.23.3.
func TestByteLevelInTheMiddle(t *testing.T) {
	data, err := os.ReadFile("testdata/gpt2-style.json")
	require.NoError(t, err)
	falcon := json.RawMessage(`{"type":"Sequence","pretokenizers":[{"type":"Punctuation","behavior":"Contiguous"},
		{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},{"type":"Digits","individual_digits":false},
		{"type":"Split","pattern":{"Regex":"[0-9][0-9][0-9]"},"behavior":"Isolated","invert":false}]}`)
	data, err = withField(data, "pre_tokenizer", falcon)
	require.NoError(t, err)
	tok, err := parse("falcon", data, description{})
	require.NoError(t, err)
	for text, want := range map[string][]uint32{
		"Hello, world!! don't 1234567 x12": {40, 69, 276, 79, 12, 267, 285, 369, 1, 1, 289, 283, 7, 84, 221, 487, 19, 20, 21, 22, 23, 221,
			88, 487},
		"नमस्ते ½ café  \r\n…x": {157, 98, 102, 157, 98, 107, 157, 98, 117, 157, 99, 236, 157, 98, 98, 157, 99, 230, 221, 127, 122, 278,
			65, 70, 128, 103, 221, 221, 202, 199, 159, 223, 100, 88},
	} {
		ids, err := tok.Encode([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, ids, text)
		back, err := tok.Decode(ids)
		require.NoError(t, err)
		require.Equal(t, text, string(back))
	}
}
