package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A folder with a tokenizer.json, whose tokenizer_config.json names a class, gives the ids of AutoTokenizer, or is
// refused, or has a note. docs/oracle/interop/tokenizer_folders.py --golden wrote golden_folders.json.
func TestFoldersOfJSON(t *testing.T) {
	var golden struct {
		Families map[string]map[string]json.RawMessage
		Rows     []struct {
			Family, Class string
			Added         json.RawMessage
			IgnoreMerges  bool `json:"ignore_merges"`
			Files         map[string]json.RawMessage
			Texts         []string
			IDs, Framed   [][]uint32 // each with the end of text behind it
		}
	}
	data, err := os.ReadFile("testdata/golden_folders.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	classes := map[string]int{}
	for i, row := range golden.Rows {
		files := map[string]string{File: string(withParts(t, golden.Families[row.Family], row.Added, row.IgnoreMerges))}
		for name, text := range row.Files {
			files[name] = string(text)
		}
		tok, err := Open(folder(t, files))
		if err != nil {
			assert.Regexp(t, "whose model is a|without gaps|but elsewhere|loses characters|is not in the vocab|drops lstrip", err.Error())
			continue
		}
		if notes := Notes(tok); len(notes) > 0 && assert.Contains(t, notes[0], "transformers reads a folder of ") &&
			assert.NotContains(t, notes[0], "assumed") {
			if _, known := jsonClasses[row.Class]; !known {
				continue
			}
		}
		classes[row.Class]++
		framed, err := Framing{BOS: BOSAuto}.Frame(tok)
		if err != nil {
			assert.ErrorContains(t, err, "puts the tokens")
			framed, row.Framed = &Framed{Tokenizer: tok, encoder: tok}, row.IDs
		}
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
				require.Equal(t, c.want, ids, "row %d: %s %s: %q", i, row.Family, row.Files, text)
			}
		}
	}
	for _, class := range []string{llamaClass, gemmaClass, gpt2Class, neoxClass, qwen2Class, qwen35Class, cohereClass, robertaClass,
		bertClass, backendClass} {
		assert.Positive(t, classes[class], class)
	}
}

// withParts returns a tokenizer.json with added tokens and with ignore_merges.
func withParts(t *testing.T, fields map[string]json.RawMessage, added json.RawMessage, ignoreMerges bool) []byte {
	t.Helper()
	f, err := readParts(encoded(fields))
	require.NoError(t, err)
	f.fields["added_tokens"], f.model["ignore_merges"] = added, encoded(ignoreMerges)
	return f.json()
}

// A note says that a class has parts of its own; the path of the file itself means the file.
func TestClassOfJSONFolder(t *testing.T) {
	data, err := os.ReadFile("testdata/smollm2-style.json")
	require.NoError(t, err)
	dir := folder(t, map[string]string{File: string(data), ConfigFile: `{"tokenizer_class":"GPT2Tokenizer"}`,
		modelFileName: `{"model_type":"llama"}`})
	own, err := In(dir)
	require.NoError(t, err)
	assert.Equal(t, dir, own)
	classed, file := open(t, dir), open(t, filepath.Join(dir, File))
	assert.NotEqual(t, classed.Hash(), file.Hash())
	assert.Empty(t, Notes(file)[1:])
	assert.Contains(t, Notes(classed)[0], "transformers reads a folder of GPT2Tokenizer with its own pre_tokenizer, and so does gpupipe; name "+filepath.Join(dir, File))
	for config, want := range map[string]string{
		`{"tokenizer_class":"T5Tokenizer"}`:                   "T5Tokenizer with rules of its own, which gpupipe does not know",
		`{"auto_map":{"AutoTokenizer":["a.B",null]}}`:         "auto_map names code of its own, which gpupipe does not run",
		`{"tokenizer_class":"PreTrainedTokenizerFast"}`:       "no file says which token ends a document: it is assumed to be <|endoftext|>",
		`{"tokenizer_class":"OwnTokenizer","eos_token":null}`: "",
	} {
		tok := open(t, folder(t, map[string]string{File: string(data), ConfigFile: config}))
		if want == "" {
			assert.Empty(t, Notes(tok))
		} else {
			assert.Contains(t, Notes(tok)[0], want)
		}
		assert.Equal(t, file.Hash(), tok.Hash(), config)
	}
	byType := open(t, folder(t, map[string]string{File: string(data), modelFileName: `{"model_type":"t5"}`}))
	assert.Contains(t, Notes(byType)[0], "a folder of a model of the type t5 with rules of its own")
	_, err = Open(folder(t, map[string]string{File: string(data), ConfigFile: `{"tokenizer_class":"BertTokenizer"}`}))
	assert.ErrorContains(t, err, "tokenizer_class is BertTokenizer, whose model is a WordPiece, and that of tokenizer.json is a BPE")
	_, err = Open(folder(t, map[string]string{File: string(data), ConfigFile: `{"tokenizer_class":"CohereTokenizer","extra_special_tokens":["<|im_end|>"],
		"added_tokens_decoder":{"0":{"content":"<|endoftext|>","special":true},"2":{"content":"<|im_end|>","rstrip":true,"special":true}}}`}))
	assert.ErrorContains(t, err, `CohereTokenizer drops lstrip, rstrip, single_word and normalized of the special token "<|im_end|>"`)
	_, err = Open(folder(t, map[string]string{File: string(data), ConfigFile: `{"split_special_tokens":true}`}))
	assert.ErrorContains(t, err, "split_special_tokens is true: expected false")
}
