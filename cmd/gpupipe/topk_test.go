package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTopK(t *testing.T) {
	dir := t.TempDir()
	run, out := filepath.Join(dir, "run"), filepath.Join(dir, "teacher.safetensors")
	code, _, errs := command("train", small(t, dir), "--device", "null", "--set", "train.steps=2")
	require.Equal(t, exitOK, code, errs)
	code, text, errs := command("topk", run, "--k", "3", "--out", out, "--device", "null")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"checkpoints/step-2", "training text of the run", out, "teacher_ids u32 and teacher_logprobs f32 ["} {
		assert.Contains(t, text, want)
	}
	words := filepath.Join(dir, "words.jsonl")
	require.NoError(t, os.WriteFile(words, []byte("{\"words\": \"some words\"}\n"), 0o666))
	code, text, errs = command("topk", run, "--data", words, "--field", "words", "--seq-len", "4", "--out", out, "--force", "--json",
		"--device", "null")
	require.Equal(t, exitOK, code, errs)
	var s inference.Stored
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	assert.Equal(t, inference.Stored{Out: out, Model: s.Model, Weights: "x", Text: words, Tokens: 10, K: 8, SeqLen: 4, Bytes: 640}, s)
	for want, args := range map[string][]string{
		out + ": it is there already: replace it with --force":  {"topk", run, "--out", out},
		"k: found 65, expected an integer from 1 to 64":         {"topk", run, "--out", out + "2", "--k", "65"},
		"batch-size: found 0":                                   {"topk", run, "--out", out + "2", "--batch-size", "0"},
		"seq-len: found -1":                                     {"topk", run, "--out", out + "2", "--seq-len=-1"},
		"missing flags: --out":                                  {"topk", run},
		"--data: " + words + "x: no such file":                  {"topk", run, "--out", out + "2", "--data", words + "x"},
		filepath.Join(dir, "none") + ": no such file or folder": {"topk", filepath.Join(dir, "none"), "--out", out + "2"},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want)
	}
	assert.NoFileExists(t, out+"2")
}
