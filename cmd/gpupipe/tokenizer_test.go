package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goldenMerges are a text and the merges that Hugging Face's trainer makes of it, by pattern.
func goldenMerges(t *testing.T) (text string, merges map[string][]string) {
	t.Helper()
	var golden struct {
		Text   string
		Merges map[string][]string
	}
	raw, err := os.ReadFile("../../pipeline/data/tokenizer/testdata/golden_trained.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.NotEmpty(t, golden.Merges)
	return golden.Text, golden.Merges
}

// files writes files into a new folder.
func files(t *testing.T, contents map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range contents {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666))
	}
	return dir
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// The merges are those of Hugging Face's trainer, of a text and of documents alike, and ids begin with the special
// tokens.
func TestTokenizerTrain(t *testing.T) {
	text, merges := goldenMerges(t)
	line, err := json.Marshal(map[string]string{"content": text})
	require.NoError(t, err)
	dir := files(t, map[string]string{"a.txt": text, "b.jsonl.gz": gzipped(t, string(line)+"\n")})
	for pattern, want := range merges {
		for _, input := range [][]string{{"a.txt"}, {"b.jsonl.gz", "--field", "content"}} {
			out := filepath.Join(dir, pattern+input[0])
			code, stdout, errs := command(append([]string{"tokenizer", "train", filepath.Join(dir, input[0]), "--vocab-size", "500",
				"--pattern", pattern,
				"--special", "<|endoftext|>", "--special", "<|pad|>", "--out", out, "--json"}, input[1:]...)...)
			require.Equal(t, exitOK, code, errs)
			var trained trainedTokenizer
			require.NoError(t, json.Unmarshal([]byte(stdout), &trained), stdout)
			assert.Equal(t, len(want), trained.Merges)
			assert.Equal(t, 258+len(want), trained.VocabSize)
			assert.Equal(t, []any{out, int64(len(text)), int64(0)}, []any{trained.Out, trained.Bytes, trained.Pruned})
			var saved struct {
				Model struct{ Merges []string }
			}
			raw, err := os.ReadFile(filepath.Join(out, tokenizer.File))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(raw, &saved))
			assert.Equal(t, want, saved.Model.Merges)
			raw, err = os.ReadFile(filepath.Join(out, "tokenizer_config.json"))
			require.NoError(t, err)
			var config map[string]any
			require.NoError(t, json.Unmarshal(raw, &config))
			assert.Equal(t, "<|endoftext|>", config["eos_token"])
			tok, err := tokenizer.Open(out)
			require.NoError(t, err)
			ids, err := tok.Encode([]byte("<|pad|>!<|endoftext|>"))
			require.NoError(t, err)
			assert.Equal(t, []uint32{1, 2, 0}, ids, "the special tokens, and of the bytes first the printable ones")
		}
	}
}

func TestTokenizerTrainReplacesOnlyWithForce(t *testing.T) {
	dir := files(t, map[string]string{"a.txt": strings.Repeat("so it goes ", 50), "file": ""})
	train := func(out string, more ...string) (code int, stdout, stderr string) {
		return command(append([]string{"tokenizer", "train", filepath.Join(dir, "a.txt"), "--vocab-size", "262", "--out",
			filepath.Join(dir, out)}, more...)...)
	}
	code, out, errs := train("new/tok.json")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"new/tok.json", "tokens     262", "merges     5", "151, 5 different", "550 bytes"} {
		assert.Contains(t, out, want)
	}
	assert.NoFileExists(t, filepath.Join(dir, "new", "tokenizer_config.json"))
	code, _, errs = train("new/tok.json")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "tok.json exists: replace it with --force")
	before, err := os.ReadFile(filepath.Join(dir, "new", "tok.json"))
	require.NoError(t, err)
	code, _, errs = train("new/tok.json", "--force", "--special", "<end>")
	require.Equal(t, exitOK, code, errs)
	after, err := os.ReadFile(filepath.Join(dir, "new", "tok.json"))
	require.NoError(t, err)
	assert.NotEqual(t, string(before), string(after))
	code, out, errs = train("small", "--vocab-size", "5000")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, errs, "the text has pairs that occur 2 times for 26")
	assert.Contains(t, out, "tokens     26")
	code, _, errs = train("file")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "file is a file: expected a folder, or a name that ends in .json")
}

// A terminal shows how far it is; a command that is interrupted writes nothing.
func TestTokenizerTrainShowsProgressAndStops(t *testing.T) {
	dir := files(t, map[string]string{"a.txt": strings.Repeat("so it goes ", 5000)})
	args := []string{"tokenizer", "train", filepath.Join(dir, "a.txt"), "--vocab-size", "262", "--out", filepath.Join(dir, "tok")}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	assert.Equal(t, exitInterrupted, (&app{ctx: ctx, stdout: &out, stderr: &errs}).run(args))
	assert.Contains(t, errs.String(), "stopped; nothing was written")
	assert.NoDirExists(t, filepath.Join(dir, "tok"))
	terminal := &app{ctx: context.Background(), stdout: &out, stderr: &errs, stdoutColumns: func() int { return 80 }}
	require.Equal(t, exitOK, terminal.run(args), errs.String())
	assert.Contains(t, out.String(), "counting words: 100%")
	assert.Contains(t, out.String(), "merging pairs: ")
	errs.Reset()
	assert.Equal(t, exitInterrupted, (&app{ctx: ctx, stdout: &out, stderr: &errs}).run([]string{"tokenizer", "check", "bytes", "--text",
		filepath.Join(dir, "a.txt")}))
	assert.Contains(t, errs.String(), "interrupted")
}

func TestTokenizerMistakes(t *testing.T) {
	dir := files(t, map[string]string{"a.txt": "text text", "a.jsonl": `{"text": "a"}` + "\n", "bad.jsonl": "{\n",
		"cut.txt.gz": gzipped(t, "some text")[:20], "s.bin": "tokens", "tok.json": `{"model": {"type": "BPE"}}`})
	at := func(name string) string { return filepath.Join(dir, name) }
	for want, args := range map[string][]string{
		"none.txt: no such file":                                {"train", at("none.txt")},
		"no file matches":                                       {"train", at("*.md")},
		"s.bin: token shards, expected texts":                   {"train", at("s.bin")},
		"cut.txt.gz: gzip: the file is truncated":               {"train", at("cut.txt.gz")},
		`bad.jsonl: line 1: not a JSON object`:                  {"train", at("bad.jsonl")},
		"--field names the field to read":                       {"train", at("a.jsonl"), "--field", "content"},
		"--vocab-size: found 100, expected an integer from 257": {"train", at("a.txt"), "--vocab-size", "100"},
		"--pattern must be one of":                              {"train", at("a.txt"), "--pattern", "bert"},
		`--special: found "x", expected different texts`:        {"train", at("a.txt"), "--special", "x"},
		"--min-frequency: found 0, expected at least 1":         {"train", at("a.txt"), "--min-frequency", "0"},
		"--max-words: found 5, expected at least 1000":          {"train", at("a.txt"), "--max-words", "5"},
		`tokenizer "gpt9": no such file`:                        {"check", "gpt9", "--text", at("a.txt")},
		"tok.json: model: vocab: missing":                       {"check", at("tok.json"), "--text", at("a.txt")},
		"--text: ":                                              {"check", "bytes", "--text", at("s.bin")},
		"missing flags: --text":                                 {"check", "bytes"},
		`no field "content"`:                                    {"check", "bytes", "--text", at("a.jsonl"), "--field", "content"},
	} {
		if args[0] == "train" {
			args = append(args, "--out", at("out"))
		}
		code, _, errs := command(append([]string{"tokenizer"}, args...)...)
		assert.Equal(t, exitMistake, code, "%v: %s", args, errs)
		assert.Contains(t, errs, want, "%v", args)
		assert.NoDirExists(t, at("out"))
	}
}

func TestTokenizerCheck(t *testing.T) {
	dir := files(t, map[string]string{"a.txt": "two words", "b.jsonl": `{"text": "abz"}` + "\n" + `{"text": "ab"}` + "\n",
		"lossy.json": `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"?":2},"merges":[],"unk_token":"?"},"decoder":{"type":"Fuse"}}`})
	code, out, errs := command("tokenizer", "check", "bytes", "--text", filepath.Join(dir, "a.txt"))
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"every text comes back", "9 bytes, 2 words", "9, 7 of 256 different",
		"4.500 tokens a word, 1.000 bytes a token", "unknown     0"} {
		assert.Contains(t, out, want)
	}
	lossy := []string{"tokenizer", "check", filepath.Join(dir, "lossy.json"), "--text", filepath.Join(dir, "b.jsonl")}
	code, out, errs = command(lossy...)
	assert.Equal(t, exitFailure, code, errs)
	assert.Contains(t, out, `1 of 2 texts differ; at byte 2: "abz" becomes "ab?"`)
	assert.Contains(t, errs, "1 of 2 texts do not come back")
	code, out, errs = command(append(lossy, "--json")...)
	assert.Equal(t, exitFailure, code, errs)
	var report map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &report), out)
	assert.Equal(t, map[string]any{"pieces": 2.0, "bytes": 5.0, "words": 2.0, "tokens": 5.0, "used_tokens": 3.0, "unknown": 1.0,
		"different":  1.0,
		"difference": `byte 2: "abz" becomes "ab?"`, "vocab_size": 3.0, "fertility": 2.5, "bytes_per_token": 1.0}, report)
}
