package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// framingGolden is what testdata/make_framing_goldens.py writes of a tokenizer, by Hugging Face's library.
type framingGolden struct {
	Texts      []string
	Token      [][]uint32 // of the texts, with special tokens as such
	Text       [][]uint32 // and as text
	Processors []struct {
		Name          string
		PostProcessor json.RawMessage `json:"post_processor"`
		Front, Back   []uint32        // what is put around a text
	}
}

func framingGoldens(t *testing.T) (all map[string]framingGolden) {
	raw, err := os.ReadFile("testdata/golden_framing.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &all))
	require.Len(t, all, 6)
	return all
}

func TestSpecialTokensInTexts(t *testing.T) {
	for name, g := range framingGoldens(t) {
		tok, err := Open(filepath.Join("testdata", name+".json"))
		require.NoError(t, err)
		for mode, want := range map[string][][]uint32{"": g.Token, SpecialAsToken: g.Token, SpecialAsText: g.Text} {
			framed, err := Framing{SpecialText: mode}.Frame(tok)
			require.NoError(t, err)
			for i, text := range g.Texts {
				ids, err := framed.Encode([]byte(text))
				require.NoError(t, err)
				assert.Equal(t, append([]uint32{}, want[i]...), append([]uint32{}, ids...), "%s %s %q", name, mode, text)
			}
			assert.Equal(t, tok.Hash(), framed.Hash())
		}
	}
}

func TestBOSOfPostProcessors(t *testing.T) {
	for name, g := range framingGoldens(t) {
		text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(t, err)
		for _, p := range g.Processors {
			var spec map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(text, &spec))
			spec["post_processor"] = p.PostProcessor
			front, back, err := postProcess(spec["post_processor"])
			require.NoError(t, err)
			assert.Equal(t, append([]uint32{}, p.Front...), append([]uint32{}, front...), "%s %s", name, p.Name)
			assert.Equal(t, append([]uint32{}, p.Back...), append([]uint32{}, back...), "%s %s", name, p.Name)
		}
	}
	for raw, want := range map[string]string{
		`{"type":"Other"}`: `type is "Other": expected TemplateProcessing`,
		`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{}}`:                             `special_tokens has no "<s>"`,
		`{"type":"TemplateProcessing","single":[],"special_tokens":{}}`:                                                                                  "0 times, expected once",
		`{"type":"BertProcessing","cls":["[CLS]",1]}`:                                                                                                    "expected a token and its number",
		`{"type":"BertProcessing","cls":["[CLS]",1],"sep":["[SEP]"]}`:                                                                                    "expected a token and its number",
		`{"type":"Sequence","processors":[{"type":"BertProcessing","cls":["a",1],"sep":["b",2]},{"type":"BertProcessing","cls":["a",1],"sep":["b",2]}]}`: "several processors",
	} {
		_, _, err := postProcess(json.RawMessage(raw))
		assert.ErrorContains(t, err, want)
	}
}

// TestBOSOfDocuments checks what begins documents by the key and by what belongs to the tokenizer.
func TestBOSOfDocuments(t *testing.T) {
	begin := `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|im_start|>"}},{"Sequence":{"id":"A"}}%s],"special_tokens":` +
		`{"<|im_start|>":{"ids":[1]},"<|im_end|>":{"ids":[2]}}}`
	var spec map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(smollm2(t)), &spec))
	open := func(post, config string) Tokenizer {
		spec["post_processor"] = json.RawMessage(post)
		text, err := json.Marshal(spec)
		require.NoError(t, err)
		tok, err := Open(folder(t, map[string]string{File: string(text), ConfigFile: config}))
		require.NoError(t, err)
		return tok
	}
	for name, c := range map[string]struct {
		post, config, bos string
		want              []uint32 // before the text
		err               string
	}{
		"never":    {fmt.Sprintf(begin, ""), `{"bos_token":"<|im_start|>"}`, BOSNever, nil, ""},
		"template": {fmt.Sprintf(begin, ""), `{}`, BOSAuto, []uint32{1}, ""},
		"end":      {fmt.Sprintf(begin, `,{"SpecialToken":{"id":"<|im_end|>"}}`), `{"eos_token":"<|im_end|>"}`, BOSAuto, []uint32{1}, ""},
		"another end": {fmt.Sprintf(begin, `,{"SpecialToken":{"id":"<|im_end|>"}}`), `{"eos_token":"<|endoftext|>"}`, BOSAuto, nil,
			"puts the tokens [2] after a text"},
		// transformers 5.23 takes no flag beside a tokenizer.json
		"add_bos_token":  {"null", `{"bos_token":"<|im_start|>","add_bos_token":true}`, BOSAuto, nil, ""},
		"template first": {fmt.Sprintf(begin, ""), `{"bos_token":"<|im_end|>","add_bos_token":true}`, BOSAuto, []uint32{1}, ""},
		"no tokens":      {`{"type":"ByteLevel"}`, `{"bos_token":"<|im_start|>","add_bos_token":true}`, BOSAuto, nil, ""},
		"none by auto":   {"null", `{"bos_token":"<|im_start|>"}`, BOSAuto, nil, ""},
		"always":         {"null", `{"bos_token":"<|im_start|>"}`, BOSAlways, []uint32{1}, ""},
		"no token":       {"null", `{}`, BOSAlways, nil, "has no token that begins a text"},
	} {
		tok := open(c.post, c.config)
		framed, err := Framing{BOS: c.bos}.Frame(tok)
		if c.err != "" {
			assert.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		plain, err := tok.Encode([]byte("one two"))
		require.NoError(t, err)
		ids, err := framed.Encode([]byte("one two"))
		require.NoError(t, err)
		assert.Equal(t, append(c.want, plain...), ids, name)
		rest, err := framed.EncodePart([]byte("one two"), false)
		require.NoError(t, err)
		assert.Equal(t, plain, rest, name)
	}
	framed, err := Framing{BOS: BOSAuto, SpecialText: SpecialAsText}.Frame(byteTokenizer{})
	require.NoError(t, err)
	ids, err := framed.Encode([]byte("ab"))
	require.NoError(t, err)
	assert.Equal(t, []uint32{'a', 'b'}, ids)
}

// Flags beside a tokenizer.model become a post-processor, with which the files of the tokenizer encode alike. The ids
// are those of transformers 5.23.
func TestFlagsBesideSentencePiece(t *testing.T) {
	model, err := os.ReadFile("testdata/sentencepiece-bpe.model")
	require.NoError(t, err)
	for flags, want := range map[string][2][]uint32{
		`{}`: {}, `{"add_bos_token":true}`: {{1}, nil}, `{"add_bos_token":false,"add_eos_token":true}`: {nil, {2}},
		`{"add_bos_token":true,"bos_token":null}`: {},
	} {
		config := `{"bos_token":"<s>","eos_token":"</s>",` + flags[1:]
		if flags == `{}` {
			config = `{"bos_token":"<s>","eos_token":"</s>"}`
		}
		tok := open(t, folder(t, map[string]string{SentencePieceFile: string(model), ConfigFile: config}))
		plain := open(t, folder(t, map[string]string{SentencePieceFile: string(model),
			ConfigFile: `{"bos_token":"<s>","eos_token":"</s>"}`}))
		assert.True(t, Is(tok, plain.Hash()) && Is(tok, tok.Hash()), "runs that an earlier version began have the hash without flags")
		files := map[string]string{}
		for name, text := range Files(tok, 0) {
			files[name] = string(text)
		}
		for _, tok := range []Tokenizer{tok, open(t, folder(t, files))} {
			assert.True(t, Is(tok, plain.Hash()), "so have shards of such a version, which the tokenizer of a checkpoint reads")
			front, back, err := Around(tok)
			require.NoError(t, err)
			assert.Equal(t, want, [2][]uint32{front, back}, flags)
		}
	}
}
