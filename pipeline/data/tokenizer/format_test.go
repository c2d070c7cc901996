package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testdata/make_file_goldens.py wrote golden_files.json.
func TestGoldenFiles(t *testing.T) {
	g := readGoldens(t, "testdata/golden_files.json")
	require.Len(t, g.Tokenizers, 5)
	for name, rows := range g.Tokenizers {
		t.Run(name, func(t *testing.T) {
			tok, err := Open(filepath.Join("testdata", name))
			require.NoError(t, err)
			again, err := parse("again", tok.JSON(), description{})
			require.NoError(t, err)
			for i, want := range rows {
				for _, tok := range []Tokenizer{tok, again} {
					ids, err := tok.Encode([]byte(g.Texts[i]))
					require.NoError(t, err)
					require.Equal(t, append([]uint32{}, want.IDs...), append([]uint32{}, ids...), "%q", g.Texts[i])
				}
			}
		})
	}
}

func TestRolesOfFiles(t *testing.T) {
	for name, want := range map[string][2]string{"gpt2": {"<|endoftext|>", "<|endoftext|>"}, "roberta": {"<s>", "</s>"},
		"qwen2": {"", "<|endoftext|>"}, "tekken": {"<s>", "</s>"}} {
		tok, err := Open(filepath.Join("testdata/files", name))
		require.NoError(t, err)
		require.Equal(t, want[0], tok.Special().Roles[RoleBOS].Text, name)
		require.Equal(t, want[1], tok.Special().Roles[RoleEOS].Text, name)
	}
	whole, err := Open("testdata/files/gpt2")
	require.NoError(t, err)
	for _, file := range []string{vocabFile, mergesFile} {
		tok, err := Open(filepath.Join("testdata/files/gpt2", file))
		require.NoError(t, err)
		require.Equal(t, whole.Hash(), tok.Hash(), file)
	}
}

// The published files of ranks are known by their content, under any name.
func TestPublishedRanks(t *testing.T) {
	data, err := unzippedGPT2()
	require.NoError(t, err)
	sum := sha256.Sum256(data)
	require.Equal(t, encodings[0].sha256, hex.EncodeToString(sum[:]))
	path := filepath.Join(t.TempDir(), "ranks.tiktoken")
	require.NoError(t, os.WriteFile(path, data, 0o666))
	tok, err := Open(path)
	require.NoError(t, err)
	want, err := openGPT2()
	require.NoError(t, err)
	text := []byte("Hello WORLD don't  \n\n x \t\n 12345 नमस्ते 漢字<|endoftext|>a  ")
	a, err := tok.Encode(text)
	require.NoError(t, err)
	b, err := want.Encode(text)
	require.NoError(t, err)
	require.Equal(t, b, a)
	end, ok := tok.EOS()
	require.True(t, ok)
	require.EqualValues(t, 50256, end)
}

// Each published encoding has its split pattern. testdata/make_file_goldens.py wrote golden_tiktoken.json: ids of
// tiktoken with a few ranks and the pattern of the encoding.
func TestSplitPatternsOfRanks(t *testing.T) {
	var golden struct {
		Ranks [][]byte
		Texts []string
		IDs   map[string][][]uint32
	}
	data, err := os.ReadFile("testdata/golden_tiktoken.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	ranks := map[string]int{}
	for i, token := range golden.Ranks {
		ranks[string(token)] = i
	}
	require.Len(t, golden.IDs, len(encodings))
	for _, e := range encodings {
		e.special, e.roles = listed(nil), nil // their numbers are far behind those of so few tokens
		data, err := e.json("a.tiktoken", ranks, &description{roles: map[string]addedToken{}})
		require.NoError(t, err)
		tok, err := parse("test", data, description{})
		require.NoError(t, err)
		for i, text := range golden.Texts {
			ids, err := tok.Encode([]byte(text))
			require.NoError(t, err)
			require.Equal(t, golden.IDs[e.name][i], append([]uint32{}, ids...), "%s: %q", e.name, text)
		}
	}
}

// The files of Qwen, Kimi and Llama 3 are known by name and number of tokens. Another number, or name, is refused.
func TestFilesOfRanksByName(t *testing.T) {
	for file, want := range map[string]struct {
		ranks int
		name  string
	}{"qwen.tiktoken": {151643, "Qwen"}, "tiktoken.model": {163584, "Kimi"}, "tokenizer.model": {128000, "Llama 3"}} {
		ranks := make(map[string]int, want.ranks)
		for i := range want.ranks {
			ranks[strconv.Itoa(i)] = i
		}
		e, err := findEncoding(file, ranks)
		require.NoError(t, err)
		require.Equal(t, want.name, e.name)
		_, err = findEncoding("other.tiktoken", ranks)
		require.ErrorContains(t, err, "tokens of an encoding that is not known; a file of tiktoken says neither how text is split")
		delete(ranks, "0")
		_, err = findEncoding(file, ranks)
		require.ErrorContains(t, err, "expected the tokenizer.json of the model, or one of r50k_base")
	}
}

func TestMalformedFiles(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata/files", name))
		require.NoError(t, err)
		return string(data)
	}
	vocab, merges, tekken := read("gpt2/vocab.json"), read("gpt2/merges.txt"), read("tekken/tekken.json")
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"three tokens": {map[string]string{vocabFile: vocab, mergesFile: "#version: 0.2\na b c\n"},
			`merges.txt: line 2 is "a b c": expected two tokens`},
		"unknown token": {map[string]string{vocabFile: vocab, mergesFile: "a ☃\n"}, `line 1 is "a ☃": token "☃" is not in vocab.json`},
		"twice": {map[string]string{vocabFile: vocab, mergesFile: merges + strings.Split(merges, "\n")[1] + "\n"},
			"expected each pair once"},
		"no vocab": {map[string]string{mergesFile: merges}, "vocab.json: no such file, which belongs to merges.txt"},
		"not JSON": {map[string]string{vocabFile: vocab[:40], mergesFile: merges}, "vocab.json: invalid JSON at byte"},
		"class": {map[string]string{vocabFile: vocab, mergesFile: merges, ConfigFile: `{"tokenizer_class":"CLIPTokenizer"}`},
			`tokenizer_class is "CLIPTokenizer", whose rules`},
		"model": {map[string]string{vocabFile: vocab, mergesFile: merges, modelFileName: `{"model_type":"clip"}`},
			`model_type is "clip", whose rules`},
		"one field": {map[string]string{"a.tiktoken": "IQ== 0\nIg==\n"},
			`a.tiktoken: line 2 is "Ig==": expected a token in base64 and its rank`},
		"base64": {map[string]string{"a.tiktoken": "?? 0\n"}, "line 1: the token is"},
		"rank":   {map[string]string{"a.tiktoken": "IQ== 0\nIg== 0\n"}, "line 2 has the rank 0 of line 1"},
		"bytes":  {map[string]string{"a.tiktoken": "IQ== 0\nIg== 1\n"}, "no token for the byte 0x00"},
		"pattern": {map[string]string{tekkenFile: strings.Replace(tekken, `"pattern": "`, `"pattern": "x$|`, 1)},
			`config.pattern has "x$"`},
		"no pattern": {map[string]string{tekkenFile: "{}"}, "not a tekken.json: no config.pattern"},
		"tekken's size": {map[string]string{tekkenFile: strings.Replace(tekken, `"default_vocab_size": `, `"default_vocab_size": 9`, 1)},
			"config.default_vocab_size is 9"},
		"special's rank": {map[string]string{tekkenFile: strings.Replace(tekken, `"rank": 1, "token_str"`, `"rank": 7, "token_str"`, 1)},
			"special_tokens[1]: the rank is 7"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666))
			}
			_, err := Open(dir)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestUnknownRanksAreRefused(t *testing.T) {
	ranks := map[string]int{}
	for b := range 256 {
		ranks[string([]byte{byte(b)})] = b
	}
	path := filepath.Join(t.TempDir(), kimiFile)
	require.NoError(t, os.WriteFile(path, writeRanks(ranks), 0o666))
	_, err := Open(path)
	require.ErrorContains(t, err, "found 256 tokens of an encoding that is not known")
	require.ErrorContains(t, err, "expected the tokenizer.json of the model, or one of r50k_base")
}
