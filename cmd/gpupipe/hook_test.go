package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const hookExamples = "../../examples/hooks/"

func TestHookCheck(t *testing.T) {
	for file, want := range map[string]string{
		"focal_loss.wasm":      "a loss f32[64] of 21 ops for logits f32[64,256]",
		"label_smoothing.wasm": "a loss f32[64] of 8 ops for logits f32[64,256]",
		"quality_filter.wasm":  "90 documents became 30, in any order the same",
		"inverse_sqrt.wasm":    "factors from 0.01 at step 0 to 0.3162 at step 999",
		"gpt2.wasm":            "a model of 875,264 numbers in 53 parameters and 6 units: embed, h.0, …, head; it is causal",
		"early_stopping.wasm":  "it let 100 steps of a falling loss go on; its state has 24 bytes",
	} {
		code, out, errs := command("hook", "check", hookExamples+file)
		require.Equal(t, exitOK, code, errs)
		assert.Contains(t, out, want)
		assert.Contains(t, out, "sha256 ")
	}
	code, out, errs := command("hook", "check", hookExamples+"focal_loss.wasm", "--config", `{"gamma": "x"}`)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, out, "build_loss  NO")
	assert.Contains(t, errs, "build_loss: failed: gamma is not a number")
}

func TestHookBench(t *testing.T) {
	text := filepath.Join(t.TempDir(), "a.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("some words of a book ", 30)+"\n\nshort"), 0o666))
	code, out, errs := command("hook", "bench", hookExamples+"quality_filter.wasm", "--text", text, "--seconds", "0.01", "--json")
	require.Equal(t, exitOK, code, errs)
	var got struct {
		Hooks []verdict
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Hooks, 1)
	assert.Equal(t, "2 documents became 1, in any order the same", got.Hooks[0].Found)
	assert.Positive(t, got.Hooks[0].MBps)
}

func TestHookMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"hook none.wasm: refused: open none.wasm":                                        {"check", "none.wasm"},
		"is not WebAssembly":                                                             {"check", hookExamples + "focal_loss.c"},
		"does not export the function on_metrics":                                        {"check", hookExamples + "focal_loss.wasm", "--hook", "on_metrics"},
		`there is no hook "loss", expected one of build_loss, build_model, map_document`: {"check", hookExamples + "focal_loss.wasm", "--hook", "loss"},
		`--config: found "[1]", expected a JSON object`:                                  {"check", hookExamples + "focal_loss.wasm", "--config", "[1]"},
		"--vocab: found 1, expected":                                                     {"check", hookExamples + "focal_loss.wasm", "--vocab", "1"},
		"--seconds: found 0, expected":                                                   {"bench", hookExamples + "focal_loss.wasm", "--seconds", "0"},
		"no such file":                                                                   {"check", hookExamples + "quality_filter.wasm", "--text", "none.txt"},
		`language "cobol", expected one of c, rust`:                                      {"new", "x", "--lang", "cobol"},
	} {
		code, _, errs := command(append([]string{"hook"}, args...)...)
		assert.Equal(t, exitMistake, code, errs)
		assert.Contains(t, errs, want)
	}
}

func TestHookNew(t *testing.T) {
	for lang, want := range map[string][]string{
		"c": {"Makefile", "gpupipe.h", "gpupipe_graph.h", "hook.c"},
		"rust": {"Cargo.toml", "gpupipe/Cargo.toml", "gpupipe/src/batch.rs", "gpupipe/src/config.rs", "gpupipe/src/global.rs", "gpupipe/src/graph.rs",
			"gpupipe/src/lib.rs", "gpupipe/src/loss.rs", "gpupipe/src/model.rs", "src/lib.rs"},
	} {
		dir := filepath.Join(t.TempDir(), "mine")
		code, out, errs := command("hook", "new", dir, "--lang", lang)
		require.Equal(t, exitOK, code, errs)
		for _, name := range want {
			assert.FileExists(t, filepath.Join(dir, name))
		}
		assert.Len(t, strings.Fields(out), len(want))
		code, _, errs = command("hook", "new", dir, "--lang", lang)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "the folder is not empty")
	}
}
