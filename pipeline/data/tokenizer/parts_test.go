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

// docs/oracle/interop/tokenizer_parts.py --golden wrote golden_parts.json: files of random parts, with the ids and decoded
// texts of Hugging Face's library. They are equal, or the file is refused with an error that names the part.
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
	t.Logf("%d files: %d texts with equal ids and decoded texts, none different; %d files refused by the name of a part", len(rows), same, refused)
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
