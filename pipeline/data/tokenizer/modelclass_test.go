package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A folder with a tokenizer.model and a tokenizer_config.json gives the ids of transformers, or is refused.
// docs/oracle/interop/tokenizer_model.py --golden wrote the models and golden.json.
func TestFoldersOfModels(t *testing.T) {
	var rows []struct {
		Model       string
		Files       map[string]json.RawMessage
		Texts       []string
		IDs, Framed [][]uint32 // each with the end of text behind it
	}
	data, err := os.ReadFile("testdata/models/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &rows))
	equal := 0
	for i, row := range rows {
		files := map[string]string{SentencePieceFile: testModel(t, row.Model)}
		for name, text := range row.Files {
			files[name] = string(text)
		}
		tok, err := Open(folder(t, files))
		if err != nil {
			assert.Regexp(t, "whose rules for tokenizer.model|without gaps|but elsewhere|expected a string or an object|names code of its own|is not in the vocab|loses characters", err.Error())
			continue
		}
		equal++
		framed, err := Framing{BOS: BOSAuto}.Frame(tok)
		require.NoError(t, err)
		for n, text := range row.Texts {
			for _, c := range []struct {
				Tokenizer
				want []uint32
			}{{tok, row.IDs[n]}, {framed, row.Framed[n]}} {
				ids, err := c.Encode([]byte(text))
				require.NoError(t, err)
				if end, ok := tok.EOS(); ok {
					ids = append(ids, end)
				}
				require.Equal(t, c.want, ids, "row %d: %s %s: %q", i, row.Model, row.Files, text)
			}
		}
	}
	assert.Equal(t, 16, equal)
}

func testModel(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/models", name))
	require.NoError(t, err)
	return string(data)
}

// Without a tokenizer_config.json, or named by its path, a tokenizer.model has SentencePiece's rules.
func TestBareModelIsSentencePiece(t *testing.T) {
	model := testModel(t, "bpe.model")
	llama := folder(t, map[string]string{SentencePieceFile: model, ConfigFile: `{"tokenizer_class":"LlamaTokenizer","legacy":true}`})
	bare := open(t, folder(t, map[string]string{SentencePieceFile: model, modelFileName: `{"model_type":"llama"}`}))
	assert.Equal(t, bare.Hash(), open(t, filepath.Join(llama, SentencePieceFile)).Hash())
	assert.NotEqual(t, bare.Hash(), open(t, llama).Hash())
	own, err := In(llama)
	require.NoError(t, err)
	assert.Equal(t, llama, own, "initial weights have the tokenizer of their folder")
}

func TestClassesAreRefusedByName(t *testing.T) {
	model, unigram := testModel(t, "bpe.model"), testModel(t, "no_ends.model")
	for want, files := range map[string]map[string]string{
		`tokenizer_config.json: tokenizer_class is "T5Tokenizer", whose rules for tokenizer.model are not known: expected a tokenizer.json`: {ConfigFile: `{"tokenizer_class":"T5TokenizerFast"}`},
		`or the path of tokenizer.model itself, which has SentencePiece's rules`:                                                            {ConfigFile: `{"tokenizer_class":"XLMRobertaTokenizer"}`},
		`tokenizer_class is "Qwen2Tokenizer"`: {ConfigFile: `{"tokenizer_class":"LlamaTokenizer"}`,
			modelFileName: `{"model_type":"qwen2"}`},
		`found no tokenizer_class, and that of model_type "t5" is not known`: {ConfigFile: `{}`, modelFileName: `{"model_type":"t5"}`},
		`auto_map names code of its own and tokenizer_class no class`:        {ConfigFile: `{"auto_map":{"AutoTokenizer":["a.B",null]}}`},
		`split_special_tokens is true: expected false`:                       {ConfigFile: `{"tokenizer_class":"LlamaTokenizer","split_special_tokens":true}`},
		`"legacy" at byte`: {ConfigFile: `{"tokenizer_class":"LlamaTokenizer","legacy":1}`},
	} {
		files[SentencePieceFile] = model
		_, err := Open(folder(t, files))
		assert.ErrorContains(t, err, want)
	}
	_, err := Open(folder(t, map[string]string{SentencePieceFile: unigram, ConfigFile: `{"tokenizer_class":"LlamaTokenizer"}`}))
	assert.ErrorContains(t, err, "has no token <0x00>: expected one for each byte")
}
