package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	for spec, want := range map[string]string{
		"":                                 `expected "bytes", "gpt2"`,
		filepath.Join(dir, "nothing.json"): "no such file",
		dir:                                "in the folder, expected " + Names(),
	} {
		_, err := Open(spec)
		assert.ErrorContains(t, err, want)
	}
	huge := filepath.Join(dir, "huge.json")
	require.NoError(t, os.WriteFile(huge, nil, 0o644))
	require.NoError(t, os.Truncate(huge, 1<<40))
	_, err := Open(huge)
	assert.ErrorContains(t, err, "huge.json: 1099511627776 bytes")
}

func TestMalformedTokenizerJSON(t *testing.T) {
	model := func(s string) string { return `{"model":{"type":"BPE",` + s + `}}` }
	unigram := func(s string) string { return `{"model":{"type":"Unigram","vocab":` + s + `}}` }
	good := `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 20) + "null" + strings.Repeat("]}", 20)
	for data, want := range map[string]string{
		``:               "invalid JSON",
		`not json`:       "invalid JSON at byte 2",
		`[1]`:            "JSON array",
		`{}`:             `no "model"`,
		`{"model":null}`: `no "model"`,
		`{"model":{"type":"Other","vocab":{"a":0}}}`:                                               `model: type is "Other": expected "BPE"`,
		unigram(`[["a",0.5]],"unk_id":1`):                                                          "unk_id is 1: expected an id from 0 to 0",
		unigram(`[]`):                                                                              "vocab: empty",
		unigram(`null`):                                                                            "vocab: missing",
		unigram(`[["a"]]`):                                                                         `vocab: ["a"]: expected ["token", score]`,
		unigram(`[["a",null]]`):                                                                    `expected ["token", score]`,
		unigram(`{"a":0}`):                                                                         "expected",
		`{"model":{"vocab":{"a":0}}}`:                                                              `type is ""`,
		model(`"merges":[]`):                                                                       "vocab: missing",
		model(`"vocab":{},"merges":[]`):                                                            "vocab: empty",
		model(`"vocab":["a"],"merges":[]`):                                                         "expected an object",
		model(`"vocab":{"a":0,"b":0},"merges":[]`):                                                 `id 0 belongs to both "a" and "b"`,
		model(`"vocab":{"a":0,"a":1},"merges":[]`):                                                 `token "a" is listed twice`,
		model(`"vocab":{"a":-1},"merges":[]`):                                                      `token "a": id is -1`,
		model(`"vocab":{"a":1.5},"merges":[]`):                                                     `token "a": id is 1.5`,
		model(`"vocab":{"a":"0"},"merges":[]`):                                                     `token "a": id is 0: expected a number`,
		model(`"vocab":{"a":{}},"merges":[]`):                                                      `token "a": id is {`,
		model(`"vocab":{"a":99999999999999999999},"merges":[]`):                                    "expected an integer",
		model(`"vocab":{"a":2000000000},"merges":[]`):                                              "largest id is 2000000000, of 1 tokens",
		model(`"vocab":{"a":0},"merges":["a b"]`):                                                  `merges: number 0 ("a" + "b"): token "b" is not in the vocab`,
		model(`"vocab":{"a":0,"b":1},"merges":[["a","b"]]`):                                        `token "ab" is not in the vocab`,
		model(`"vocab":{"a":0},"merges":["a"]`):                                                    `merges: number 0: "a": expected two tokens`,
		model(`"vocab":{"a":0},"merges":["a b c"]`):                                                "expected two tokens",
		model(`"vocab":{"a":0},"merges":[["a"]]`):                                                  "expected two tokens",
		model(`"vocab":{"a":0},"merges":[["a",1]]`):                                                "number 0",
		model(`"vocab":{"a":0},"merges":[7]`):                                                      `expected "a b"`,
		model(`"vocab":{"a":0},"merges":"a b"`):                                                    `"merges"`,
		model(`"vocab":{"a":0,"aa":1},"merges":["a a","a a"]`):                                     "listed twice",
		model(`"vocab":{"a":0},"merges":[],"unk_token":"?"`):                                       `unk_token "?" is not in the vocab`,
		model(`"vocab":{"a":0},"merges":[],"dropout":0.1`):                                         "dropout is 0.1",
		`{"normalizer":{"type":"Other"},` + good + `}`:                                             `normalizer: type "Other" is not supported`,
		`{"normalizer":{"type":"Precompiled"},` + good + `}`:                                       "normalizer: Precompiled: precompiled_charsmap: 0 bytes",
		`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"?"},` + good + `}`:            "illegal base64",
		`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"CAAAAAAAAAA="},` + good + `}`: "a trie of 8 bytes, of 4 in all",
		`{"normalizer":{"type":"Replace"},` + good + `}`:                                           "normalizer: Replace: pattern",
		`{"normalizer":7,` + good + `}`:                                                            "normalizer: a JSON number: expected an object",
		`[]`:                                                                                       "not a tokenizer.json: a JSON array: expected an object",
		`{"normalizer":` + deep + `,` + good + `}`:                                                 "nested more than",
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"},` + good + `}`: "pre_tokenizer: Split: pattern",
		`{"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"X"},` + good + `}`:       `behavior is "X"`,
		`{"pre_tokenizer":{"type":"Metaspace","replacement":"ab"},` + good + `}`:                        "expected one character",
		`{"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"x"},` + good + `}`:    `prepend_scheme is "x"`,
		`{"pre_tokenizer":{"type":"Other"},` + good + `}`:                                               `"Other" is not supported`,
		`{"decoder":{"type":"CTC"},` + good + `}`:                                                       `decoder: CTC: no "pad_token"`,
		`{"decoder":{"type":"Strip","content":" ","start":-1},` + good + `}`:                            "decoder: Strip",
		`{"added_tokens":[{"id":0,"content":"x"}],` + good + `}`:                                        `id 0 belongs to both "a" and "x"`,
		`{"added_tokens":[{"id":5,"content":"a"}],` + good + `}`:                                        `"a" has id 5: elsewhere it has id 0`,
		`{"added_tokens":[{"id":3,"content":" ","normalized":true}],"normalizer":{"type":"Strip","strip_left":true,"strip_right":true},` +
			good + `}`: `" " is nothing after the normalizer`,
		`{"added_tokens":[{"id":3,"content":""}],` + good + `}`:                         "empty content",
		`{"added_tokens":[{"id":-3,"content":"x"}],` + good + `}`:                       "id is -3",
		`{"added_tokens":[{"id":3,"content":"x"},{"id":3,"content":"x"}],` + good + `}`: "id 3 is listed twice",
		`{"added_tokens":[{"id":2000000000,"content":"x"}],` + good + `}`:               "largest id is 2000000000",
	} {
		_, err := parse("test", []byte(data), description{})
		assert.ErrorContains(t, err, want, data)
	}
	_, err := parse("test", []byte("{"+good+"}"), description{})
	assert.NoError(t, err)
}

// A character that the vocabulary lacks is an error, not a silent loss, when there is no unk_token for it.
func TestTextOutsideTheVocabulary(t *testing.T) {
	for pre, want := range map[string]string{
		`null`:                 `character "z" has no token`,
		`{"type":"ByteLevel"}`: "byte 0x20 has no token",
	} {
		tok, err := parse("test", fmt.Appendf(nil, `{"pre_tokenizer":%s,"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`, pre),
			description{})
		require.NoError(t, err)
		_, err = tok.Encode([]byte("z"))
		assert.ErrorContains(t, err, want)
	}
}

// Split's behaviours and Metaspace's older spelling, as Hugging Face's library documents them.
func TestSplitBehaviors(t *testing.T) {
	for name, want := range map[string][]string{
		"Isolated":           {"the", "-", "final", "-", "-", "count"},
		"Removed":            {"the", "final", "count"},
		"MergedWithPrevious": {"the-", "final-", "-", "count"},
		"MergedWithNext":     {"the", "-final", "-", "-count"},
		"Contiguous":         {"the", "-", "final", "--", "count"},
	} {
		p, err := parsePreTokenizer(fmt.Appendf(nil, `{"type":"Split","pattern":{"String":"-"},"behavior":%q}`, name))
		require.NoError(t, err)
		got, err := p.cut(nil, fragment{text: "the-final--count"})
		require.NoError(t, err)
		assert.Equal(t, want, texts(got), name)
	}
	p, err := parsePreTokenizer([]byte(`{"type":"Metaspace","replacement":"▁","add_prefix_space":false}`))
	require.NoError(t, err)
	got, err := p.cut(nil, fragment{text: "a b"})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "▁b"}, texts(got))
}

func texts(list []fragment) (out []string) {
	for _, p := range list {
		out = append(out, p.text)
	}
	return out
}

// No tokenizer.json makes the loader, or what it loads, panic or give an id outside its vocabulary.
func FuzzTokenizerJSON(f *testing.F) {
	const model = `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"▁":3,"<0x0A>":4},"merges":["a b"],"unk_token":"a","byte_fallback":true}}`
	f.Add([]byte(`{"added_tokens":[{"id":5,"content":"x","rstrip":true,"lstrip":true,"normalized":true}],`+model), "abx ba")
	f.Add([]byte(`{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},`+
		`"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},`+model), "ab a\nb")
	f.Add([]byte(`{"pre_tokenizer":{"type":"Metaspace","replacement":"▁"},"decoder":{"type":"Metaspace","replacement":"▁"},`+model),
		"ab ab")
	f.Add([]byte(`{"pre_tokenizer":{"type":"ByteLevel","use_regex":false},"decoder":{"type":"ByteLevel"},`+model), "ab\xff")
	f.Add([]byte(`{"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a|b(?!a)"},"behavior":"MergedWithNext","invert":true},"decoder":{"type":"BPEDecoder"},`+model), "abbab")
	for _, name := range []string{"t5-style", "llama-unigram-style"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		require.NoError(f, err)
		f.Add(data, "a\nb e\u0301 \xff")
	}
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := parse("fuzz", data, description{})
		if err != nil {
			return
		}
		ids, err := tok.Encode([]byte(text))
		if err != nil {
			return
		}
		for _, id := range ids {
			require.Less(t, int(id), tok.VocabSize())
		}
		_, err = tok.Decode(ids)
		require.NoError(t, err)
	})
}

// No tokenizer.model makes the loader panic.
func FuzzSentencePiece(f *testing.F) {
	for _, name := range []string{"sentencepiece-bpe", "sentencepiece-unigram"} {
		data, err := os.ReadFile("testdata/" + name + ".model")
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("\x0a\x03\x0a\x01a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if data, err := fromSentencePiece(data); err == nil {
			_, _ = parse("fuzz", data, description{})
		}
	})
}

func TestMalformedSentencePiece(t *testing.T) {
	for data, want := range map[string]string{
		"":                                  "it has no pieces",
		"text":                              "not a SentencePiece model",
		"\x0a\x03\x0a\x01\xff":              "piece 0 is not UTF-8",
		"\x0a\x03\x0a\x01a\x12\x02\x18\x03": "model_type is 3: expected 1 (unigram) or 2 (BPE)",
		"\x0a\x03\x0a\x01a\x1a\x02\x28\x00": "escape_whitespaces is not",
	} {
		_, err := fromSentencePiece([]byte(data))
		assert.ErrorContains(t, err, want)
	}
}
