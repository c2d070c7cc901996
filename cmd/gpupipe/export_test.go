package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExport(t *testing.T) {
	dir := t.TempDir()
	run, out := filepath.Join(dir, "run"), filepath.Join(dir, "out")
	code, _, errs := command("train", small(t, dir), "--device", "null", "--set", "train.steps=4", "--set",
		"pipeline={delay: 1, error_feedback: true}")
	require.Equal(t, exitOK, code, errs)
	code, text, errs := command("export", run, "--out", out, "--dtype", "bf16", "--weights", "y")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"checkpoints/step-4", "as bf16", out, "model.safetensors"} {
		assert.Contains(t, text, want)
	}
	code, text, errs = command("export", run, "--out", out, "--step", "2", "--force", "--json")
	require.Equal(t, exitOK, code, errs)
	var e struct {
		Step    int
		Weights string
		Files   []string
	}
	require.NoError(t, json.Unmarshal([]byte(text), &e))
	assert.Equal(t, 2, e.Step)
	assert.Equal(t, "x", e.Weights)
	assert.Len(t, e.Files, 5)
	for _, args := range [][]string{{"eval", run, "--weights", "y"}, {"generate", run, "--weights", "y", "-n", "2"},
		{"generate", out, "-n", "2"}} {
		code, _, errs = command(append(args, "--device", "null")...)
		assert.Equal(t, exitOK, code, errs)
		assert.Empty(t, errs)
	}
	for want, args := range map[string][]string{
		out + ": a model is there already: replace it with --force":             {"export", run, "--out", out},
		"has no checkpoint of step 3, expected one of 2, 4":                     {"export", run, "--out", out, "--force", "--step", "3"},
		"found y, but " + out + " is no checkpoint of a run":                    {"export", out, "--out", out + "2", "--weights", "y"},
		out + " is no checkpoint of a run and holds one version of its weights": {"generate", out, "--weights", "y"},
		`--weights must be one of "x","y" but got "z"`:                          {"eval", run, "--weights", "z"},
		`--dtype must be one of "f32","bf16","f16","q8_0" but got "f8"`:         {"export", run, "--out", out, "--dtype", "f8"},
		"missing flags: --out":      {"export", run},
		dir + " has no checkpoints": {"export", dir, "--out", out + "2", "--step", "2"},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want)
	}
}
