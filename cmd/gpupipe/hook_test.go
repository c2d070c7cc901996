package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const hookExamples = "../../examples/hooks/"

func TestHookCheck(t *testing.T) {
	for file, want := range map[string]string{
		"focal_loss.wasm":      "a loss f32[64] of 21 ops; reads logits, targets; logits are f32[64,256]; a call opens an instance; the same every time",
		"label_smoothing.wasm": "a loss f32[64] of 8 ops; reads logits, targets; logits are f32[64,256]",
		"quality_filter.wasm":  "90 documents became 30; the same every time and in any order",
		"inverse_sqrt.wasm":    "factors from 0.01 at step 0 to 0.3162 at step 999",
		"gpt2.wasm":            "a model of 875,264 elements in 53 parameters and 6 units: embed, h.0, …, head",
		"early_stopping.wasm":  "it lets 100 steps of a falling loss continue; its state has 24 bytes",
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
	var got struct{ Figures []measured }
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	var what []string
	for _, f := range got.Figures {
		what = append(what, f.What)
		assert.Positive(t, f.Value, f.What)
		assert.Equal(t, (f.Value >= f.Limit) == f.Least, f.OK, "%+v", f)
	}
	assert.Equal(t, []string{"an empty call", "4 MB in and out", "metered to unmetered",
		fmt.Sprintf("data on %d cores", runtime.GOMAXPROCS(0))}, what)
	assert.Equal(t, []float64{2, 0.5, 1.6, 50}, []float64{got.Figures[0].Limit, got.Figures[1].Limit, got.Figures[2].Limit,
		got.Figures[3].Limit})
}

func TestHookMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"gpupipe: none.wasm: no such file\n":      {"check", "none.wasm"},
		"is not WebAssembly":                      {"check", hookExamples + "focal_loss.c"},
		"does not export the function on_metrics": {"check", hookExamples + "focal_loss.wasm", "--hook", "on_metrics"},
		`unknown hook "loss", expected one of build_loss, build_model, map_document`: {"check", hookExamples + "focal_loss.wasm",
			"--hook", "loss"},
		`--config: found "[1]", expected a JSON object`: {"check", hookExamples + "focal_loss.wasm", "--config", "[1]"},
		"--vocab: found 1, expected":                    {"check", hookExamples + "focal_loss.wasm", "--vocab", "1"},
		`--aligned: found "teacher=f64[8]", expected a name, and its type`: {"check", hookExamples + "focal_loss.wasm", "--aligned",
			"teacher=f64[8]"},
		"--seconds: found 0, expected": {"bench", hookExamples + "focal_loss.wasm", "--seconds", "0"},
		"no such file":                 {"check", hookExamples + "quality_filter.wasm", "--text", "none.txt"},
		`--lang: found "cobol", expected one of c, rust, assemblyscript, tinygo, go`: {"new", "x", "--lang", "cobol"},
	} {
		code, _, errs := command(append([]string{"hook"}, args...)...)
		assert.Equal(t, exitMistake, code, errs)
		assert.Contains(t, errs, want)
	}
}

func TestHookNew(t *testing.T) {
	for lang, want := range map[string][]string{
		"c":              {"Makefile", "gpupipe.h", "gpupipe_graph.h", "hook.c"},
		"rust":           {"Makefile", "Cargo.toml", "gpupipe/Cargo.toml", "gpupipe/src/lib.rs", "gpupipe/src/batch.rs", "src/lib.rs"},
		"assemblyscript": {"Makefile", "package.json", "hook.ts", "gpupipe/package.json", "gpupipe/build.mjs", "gpupipe/index.ts"},
		"tinygo": {"Makefile", "go.mod", "main.go", "tinygo.sh", "tinygo.json", "gpupipe/go.mod", "gpupipe/gpupipe.go",
			"gpupipe/buildloss/buildloss.go"},
		"go": {"Makefile", "go.mod", "main.go", "gpupipe/go.mod", "gpupipe/gpupipe.go", "gpupipe/buildloss/buildloss.go"},
	} {
		dir := filepath.Join(t.TempDir(), "mine")
		code, out, errs := command("hook", "new", dir, "--lang", lang)
		require.Equal(t, exitOK, code, errs)
		names := strings.Fields(out)
		for _, name := range want {
			assert.FileExists(t, filepath.Join(dir, name))
			assert.Contains(t, names, filepath.Join(dir, name))
		}
		assert.Len(t, slices.Compact(slices.Clone(names)), len(names), "a file was written twice: %s", out)
		code, _, errs = command("hook", "new", dir, "--lang", lang)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "the folder is not empty")
	}
}

// Without its toolchain, the programs that are missing are named, and how to get them.
func TestHookNewNamesTheToolchain(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	code, _, errs := command("hook", "new", filepath.Join(t.TempDir(), "mine"), "--lang", "c")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, errs, "building it needs make, clang, wasm-ld; missing here: make, clang, wasm-ld; on ")
	assert.Contains(t, errs, " install ")
}

func TestTimesHaveFourDigits(t *testing.T) {
	for want, seconds := range map[string]float64{"10.08 ms": 0.010083, "1.5 s": 1.5, "1000 ms": 0.99999, "12.35 µs": 1.2346e-5,
		"0 µs": 0} {
		assert.Equal(t, want, inSeconds(seconds))
	}
}
