package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// viaGGUF writes a tokenizer into a GGUF file and opens that.
func viaGGUF(t *testing.T, tok Tokenizer, vocab int) (Tokenizer, map[string]any) {
	t.Helper()
	keys, err := GGUF(tok, vocab, t.Logf)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, atomicfile.Write(path, func(w io.Writer) error { return gguf.Write(w, keys, nil) }))
	back, err := Open(path)
	require.NoError(t, err)
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	return back, f.Keys()
}

// A tokenizer in a GGUF file gives the same ids.
func TestGGUFEncodesAlike(t *testing.T) {
	texts := readGoldens(t, "testdata/golden.json").Texts
	gpt2, err := Open("gpt2")
	require.NoError(t, err)
	llama3, err := Open("testdata/llama3-style.json")
	require.NoError(t, err)
	smollm2, err := Open("testdata/smollm2-style.json")
	require.NoError(t, err)
	for _, tok := range []Tokenizer{gpt2, byteTokenizer{}, llama3, smollm2} {
		back, keys := viaGGUF(t, tok, tok.VocabSize()+3)
		pre := keys[ggufPre]
		assert.Len(t, keys[ggufTokens], tok.VocabSize()+3)
		assert.NotEmpty(t, keys[ggufMerges], "llama.cpp refuses a file without")
		for _, text := range texts {
			want, err := tok.Encode([]byte(text))
			require.NoError(t, err)
			got, err := back.Encode([]byte(text))
			require.NoError(t, err)
			require.True(t, slices.Equal(want, got), "%s, %s: %q", tok.Name(), pre, text)
		}
		wantEnd, has := tok.EOS()
		end, ok := back.EOS()
		assert.Equal(t, []any{wantEnd, has}, []any{end, ok})
	}
}

func TestGGUFOfSentencePiece(t *testing.T) {
	tok, err := Open("testdata/sentencepiece-bpe.model")
	require.NoError(t, err)
	back, keys := viaGGUF(t, tok, tok.VocabSize()+1)
	assert.Equal(t, "llama", keys[ggufModel])
	for _, text := range []string{"a", "the quick brown fox", "Ünïcode 中文", "a  b\nc", "123"} {
		want, err := tok.Encode([]byte(text))
		require.NoError(t, err)
		got, err := back.Encode([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, want, got, text)
	}
}

// The name of the pre-tokenizer follows from its rules.
func TestGGUFPreTokenizers(t *testing.T) {
	split := func(pattern string) string {
		return `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + quoted(pattern) +
			`},"behavior":"Isolated","invert":false},` +
			`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`
	}
	model := func(ignore string) string {
		return `"model":{"type":"BPE","ignore_merges":` + ignore + `,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	}
	for _, c := range []struct{ pre, ignore, want string }{
		{`{"type":"ByteLevel"}`, "false", "gpt-2"},
		{`{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel"}]}`, "false", "smollm"},
		{split(gpt4Pattern), "true", "llama-bpe"},
		{split(gpt4Pattern), "false", "dbrx"},
		{split(qwenPattern), "false", "qwen2"},
		{split(gpt4oPattern), "false", "gpt-4o"},
		{split(tekkenPattern), "true", "tekken"},
	} {
		tok, err := parse("test", []byte(`{"pre_tokenizer":`+c.pre+`,`+model(c.ignore)+`}`), description{})
		require.NoError(t, err)
		_, keys := viaGGUF(t, tok, 3)
		assert.Equal(t, c.want, keys[ggufPre])
	}
	tok, err := parse("test", []byte(`{"pre_tokenizer":`+split("a|b")+`,`+model("false")+`}`), description{})
	require.NoError(t, err)
	_, err = GGUF(tok, 3, t.Logf)
	assert.ErrorContains(t, err, "tokenizer test: pre_tokenizer: llama.cpp has none with the rules")
	unigram, err := Open("testdata/t5-style.json")
	require.NoError(t, err)
	_, err = GGUF(unigram, unigram.VocabSize(), t.Logf)
	assert.ErrorContains(t, err, "a Unigram model, expected BPE for GGUF")
}

func TestMalformedGGUFTokenizer(t *testing.T) {
	good := map[string]any{ggufModel: "gpt2", ggufPre: "gpt-2", ggufTokens: []string{"a", "b", "ab"}, ggufMerges: []string{"a b"}}
	for want, change := range map[string]map[string]any{
		"tokenizer.ggml.tokens: missing":                               {ggufTokens: uint32(1)},
		"tokenizer.ggml.token_type: 1 kinds of 3 tokens":               {ggufTypes: []int32{1}},
		"tokenizer.ggml.model: found bert, expected gpt2":              {ggufModel: "bert"},
		`tokenizer.ggml.pre: found "other", expected one of gpt-2`:     {ggufPre: "other"},
		`token "a" has the ids 0 and 1`:                                {ggufTokens: []string{"a", "a"}},
		`tokenizer.ggml.merges: number 0: "ab", expected two tokens`:   {ggufMerges: []string{"ab"}},
		"tokenizer.ggml.scores: 0 scores of 3 tokens":                  {ggufModel: "llama"},
		`merges: number 0 ("b" + "a"): token "ba" is not in the vocab`: {ggufMerges: []string{"b a"}},
	} {
		var keys []gguf.Key
		for name, v := range good {
			if _, ok := change[name]; !ok {
				keys = append(keys, gguf.Key{Name: name, Value: v})
			}
		}
		for name, v := range change {
			keys = append(keys, gguf.Key{Name: name, Value: v})
		}
		var file bytes.Buffer
		require.NoError(t, gguf.Write(&file, keys, nil))
		path := filepath.Join(t.TempDir(), "x.gguf")
		require.NoError(t, atomicfile.Write(path, func(w io.Writer) error { _, err := w.Write(file.Bytes()); return err }))
		_, err := Open(path)
		assert.ErrorContains(t, err, want)
	}
}

// Without the key llama.cpp decides by the kind of tokenizer.
func TestGGUFBeginning(t *testing.T) {
	for _, c := range []struct {
		model, pre string
		key        any
		want       bool
	}{{"gpt2", "llama-bpe", nil, true}, {"gpt2", "llama3", nil, true}, {"gpt2", "tekken", nil, true}, {"gpt2", "gpt-2", nil, false},
		{"gpt2", "qwen2", nil, false}, {"gpt2", "llama-bpe", false, false}, {"gpt2", "gpt-2", true, true}, {"llama", "default", nil, true},
		{"llama", "default", false, false}} {
		keys := []gguf.Key{{Name: ggufModel, Value: c.model}, {Name: ggufPre, Value: c.pre},
			{Name: ggufTokens, Value: []string{"a", "b", "ab"}},
			{Name: ggufMerges, Value: []string{"a b"}}, {Name: ggufScores, Value: []float32{0, 0, 0}}, {Name: ggufBOS, Value: uint32(0)}}
		if c.key != nil {
			keys = append(keys, gguf.Key{Name: ggufAddBOS, Value: c.key})
		}
		path := filepath.Join(t.TempDir(), "x.gguf")
		require.NoError(t, atomicfile.Write(path, func(w io.Writer) error { return gguf.Write(w, keys, nil) }))
		tok, err := Open(path)
		require.NoError(t, err)
		front, back, err := Around(tok)
		require.NoError(t, err)
		assert.Equal(t, []any{c.want, 0}, []any{slices.Equal(front, []uint32{0}), len(back)}, "%s %s %v", c.model, c.pre, c.key)
	}
}

func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a text always marshals
	}
	return string(text)
}

// A file says what the tokenizer puts around a text, and what llama.cpp cannot do is noted.
func TestGGUFSaysWhatFramesATextAndNotesFurtherEnds(t *testing.T) {
	template := `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|im_start|>"}},{"Sequence":{"id":"A"}}],` +
		`"special_tokens":{"<|im_start|>":{"ids":[1]}}}`
	for name, c := range map[string]struct {
		post, config string
		bos, eos     bool
		note         string
	}{
		"both":          {bothEnds, `{"bos_token":"<|im_start|>","eos_token":"<|im_end|>"}`, true, true, ""},
		"template":      {template, `{"bos_token":"<|im_start|>","add_bos_token":false}`, true, false, ""},
		"flags unused":  {"null", `{"bos_token":"<|im_start|>","add_bos_token":true}`, false, false, ""},
		"another begin": {template, `{"bos_token":"<|im_end|>"}`, false, false, "does not put the tokens [1] and [] around a text"},
	} {
		var spec map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(smollm2(t)), &spec))
		spec["post_processor"] = json.RawMessage(c.post)
		text, err := json.Marshal(spec)
		require.NoError(t, err)
		tok := open(t, folder(t, map[string]string{File: string(text), ConfigFile: c.config, GenerationFile: `{"eos_token_id":[2,0,1,3]}`}))
		notes := ""
		keys, err := GGUF(tok, tok.VocabSize(), func(format string, args ...any) { notes += fmt.Sprintf(format, args...) + "\n" })
		require.NoError(t, err)
		assert.Contains(t, keys, gguf.Key{Name: ggufAddBOS, Value: c.bos}, name)
		assert.Contains(t, keys, gguf.Key{Name: ggufAddEOS, Value: c.eos}, name)
		assert.Contains(t, notes, c.note, name)
		assert.Contains(t, notes, "llama.cpp has 3 keys of tokens that end a text: it goes on after the ends [", name)
	}
}

// bothEnds puts <|im_start|> before a text and <|im_end|> after it.
const bothEnds = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|im_start|>"}},{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"<|im_end|>"}}],` +
	`"special_tokens":{"<|im_start|>":{"ids":[1]},"<|im_end|>":{"ids":[2]}}}`

// What belongs to a tokenizer comes back from a GGUF file, in the same order.
func TestSpecialOfGGUF(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"ends": {ConfigFile: `{"eos_token":"<|im_end|>","bos_token":"<|im_start|>","pad_token":"<|endoftext|>"}`,
			GenerationFile: `{"eos_token_id":[0,2]}`},
		"four ends": {ConfigFile: `{"eos_token":"<|im_end|>"}`, GenerationFile: `{"eos_token_id":[4,0,2,3]}`},
		"one end":   {ConfigFile: `{"eos_token":"<|endoftext|>"}`, TemplateFile: "chat"},
		"templates": {ConfigFile: `{"eos_token":"<|im_end|>","chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"}]}`},
	} {
		files[File] = smollm2(t)
		tok := open(t, folder(t, files))
		back, _ := viaGGUF(t, tok, tok.VocabSize())
		assert.Equal(t, tok.Special(), back.Special(), name)
	}
}

// The ends of files of other programs are llama.cpp's.
func TestEndsOfGGUF(t *testing.T) {
	const eos, eot, eom = ggufEOS, ggufEOT, ggufEOM
	for name, c := range map[string]struct {
		tokens []string // after a, b and ab
		keys   map[string]any
		want   []uint32
		err    string
	}{
		"one key":         {[]string{"x", "y"}, map[string]any{eos: uint32(4)}, []uint32{4}, ""},
		"three keys":      {[]string{"x", "y", "z"}, map[string]any{eos: uint32(4), eot: uint32(3), eom: uint32(5)}, []uint32{4, 3, 5}, ""},
		"names":           {[]string{"<|im_end|>", "<|endoftext|>", "<|eom_id|>"}, map[string]any{eos: uint32(4)}, []uint32{4, 3, 5}, ""},
		"names and a key": {[]string{"<end_of_turn>", "y"}, map[string]any{eos: uint32(4), eot: uint32(4)}, []uint32{4, 3}, ""},
		"fill in the middle": {[]string{"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "</s>"}, map[string]any{eos: uint32(6)},
			[]uint32{6, 3, 4, 5}, ""},
		"a key for the middle": {[]string{"<|fim_pad|>", "y"},
			map[string]any{eos: uint32(4), "tokenizer.ggml.fim_pad_token_id": uint32(4)}, []uint32{4}, ""},
		"calls":        {[]string{"<|end|>", "<|return|>", "<|call|>"}, map[string]any{eos: uint32(4)}, []uint32{4, 5}, ""},
		"no calls":     {[]string{"<|end|>", "<|return|>"}, map[string]any{eos: uint32(4)}, []uint32{4, 3}, ""},
		"another list": {[]string{"x", "y"}, map[string]any{eos: uint32(4), ggufAllEnds: []int32{3}}, []uint32{4}, ""},
		"an end outside": {[]string{"x"}, map[string]any{eos: uint32(4)}, nil,
			"tokenizer.ggml.eos_token_id: found 4, expected the number of a token, from 0 to 3"},
		"a begin outside": {[]string{"x"}, map[string]any{ggufBOS: uint32(99)}, nil, "tokenizer.ggml.bos_token_id: found 99"},
	} {
		keys := []gguf.Key{{Name: ggufModel, Value: "gpt2"}, {Name: ggufPre, Value: "gpt-2"},
			{Name: ggufTokens, Value: append([]string{"a", "b", "ab"}, c.tokens...)}, {Name: ggufMerges, Value: []string{"a b"}}}
		for key, v := range c.keys {
			keys = append(keys, gguf.Key{Name: key, Value: v})
		}
		path := filepath.Join(t.TempDir(), "x.gguf")
		require.NoError(t, atomicfile.Write(path, func(w io.Writer) error { return gguf.Write(w, keys, nil) }))
		tok, err := Open(path)
		if c.err != "" {
			assert.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		assert.Equal(t, c.want, tok.Special().Ends, name)
		if slices.Contains(c.want, 3) && len(c.keys) == 1 {
			ids, err := tok.Encode([]byte("ab" + c.tokens[0]))
			require.NoError(t, err)
			assert.Equal(t, []uint32{2, 3}, ids, "%s: a control token", name)
		}
	}
}
