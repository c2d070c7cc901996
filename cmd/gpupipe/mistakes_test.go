package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The choices of kernels are a cache: without it a run goes on.
func TestWithoutACacheARunGoesOn(t *testing.T) {
	for name, cache := range map[string]string{"no folder": "", "relative": "relative", "a device": os.DevNull} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("XDG_CACHE_HOME", cache)
			t.Setenv("HOME", "")
			t.Setenv("LocalAppData", "")
			code, out, errs := command("train", small(t, dir), "--device", "null", "--set", "train.steps=2")
			assert.Equal(t, exitOK, code, errs)
			assert.Contains(t, out, "checkpoints/step-2")
			assert.Contains(t, errs, "kernel choices are not kept for later runs")
		})
	}
}

// Machine code is not taken from, nor left in, a folder that others may write to; Vulkan's device computes all the
// same.
func TestWithoutAPrivateCacheDevicesOpen(t *testing.T) {
	tier.Rest(t)
	if runtime.GOOS != "linux" {
		t.Skip("Vulkan itself is for Linux")
	}
	for name, spoil := range map[string]func(dir string) error{
		"others may write": func(dir string) error { return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o777)) },
		"and below": func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/modules", 0o700), os.Chmod(dir+"/modules", 0o770))
		},
		"a file": func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.WriteFile(dir, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("XDG_CACHE_HOME", dir)
			cache := filepath.Join(dir, "gpupipe", "vulkan")
			require.NoError(t, spoil(cache))
			code, out, errs := command("verify", "--device", "vulkan:0", "--device", "vulkan:0", "--quick", "--batches", "6", "--filter",
				"none such")
			assert.Equal(t, exitMistake, code, out)
			assert.Equal(t, 1, strings.Count(errs, "gpupipe: compiled code (vulkan) is not kept for later runs: "), errs)
			code, _, errs = command("selftest", "--device", "vulkan:0", "--quick", "--filter", "silu")
			assert.Equal(t, exitOK, code, errs)
			assert.Contains(t, errs, cache)
			left, _ := filepath.Glob(filepath.Join(cache, "*"))
			for _, file := range left {
				assert.Equal(t, "modules", filepath.Base(file), "nothing was written there")
			}
		})
	}
}

func TestTooLargeIsAMistake(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	code, _, errs := command("train", c, "--device", "null", "--set", "model.vocab_size=16777216")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "does not fit the device: ")
	assert.Contains(t, errs, "needs 2 GiB in one piece, the device binds at most 128 MiB")
	assert.NoDirExists(t, filepath.Join(dir, "run"))
}

func TestNamesNeedNotBeUTF8(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system's names are Unicode")
	}
	dir := t.TempDir()
	code, _, errs := command("train", small(t, dir), "--device", "null", "--set", "train.steps=2")
	require.Equal(t, exitOK, code, errs)
	odd := filepath.Join(dir, "run\xff")
	require.NoError(t, os.Rename(filepath.Join(dir, "run"), odd))
	text := filepath.Join(dir, "text\xfe.txt")
	require.NoError(t, os.Rename(filepath.Join(dir, "text.txt"), text))
	code, out, errs := command("eval", odd, "--data", text, "--device", "null")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, text)
	code, _, errs = command("train", odd, "--resume", "--device", "null")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "not UTF-8")
}

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputThatIsLost(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"train", small(t, dir), "--device", "null"}, {"devices", "--json"},
		{"eval", filepath.Join(dir, "run"), "--device", "null"}, {"generate", filepath.Join(dir, "run"), "--device", "null"}} {
		var errs bytes.Buffer
		a := &app{ctx: context.Background(), stdout: full{}, stderr: &errs}
		assert.Equal(t, exitMistake, a.run(args), args)
		assert.Contains(t, errs.String(), "standard output: no space left on device", args)
	}
	assert.FileExists(t, filepath.Join(dir, "run/checkpoints/step-12/manifest.json"), "training went on")
}

// A run that is stopped before it has done a step says what was saved, and what was not.
func TestStoppedBeforeAStep(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var errs bytes.Buffer
	a := &app{ctx: ctx, stdout: &errs, stderr: &errs}
	assert.Equal(t, exitInterrupted, a.run([]string{"train", small(t, dir), "--device", "null"}))
	assert.Contains(t, errs.String(), "stopped before the first step: nothing was saved, and the run folder is as it was; the same command begins again\n")
	assert.NoDirExists(t, filepath.Join(dir, "run"))
	for want, res := range map[string]train.Result{
		"stopped before the first step was done: there is no checkpoint; to begin again: gpupipe host runs/a --resume\n":        {Idle: true},
		"stopped before another step was done: nothing new was saved; to continue after step 3: gpupipe host runs/a --resume\n": {Idle: true, Step: 3, Checkpoint: "c"},
		"stopped after step 3; to continue: gpupipe host runs/a --resume\n":                                                     {Step: 3, Checkpoint: "c"},
	} {
		errs.Reset()
		res.Dir, res.Interrupted = "runs/a", true
		assert.ErrorIs(t, newProgress(a, false).ended(res, "host"), errInterrupted)
		assert.Contains(t, errs.String(), want)
	}
}

// Weights that are not finite are refused with the tensor's name.
func TestWeightsThatAreNotFinite(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	code, out, errs := command("train", c, "--device", "null", "--set", "train.steps=0")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "steps       none: 0 of 0 are done")
	from := filepath.Join(dir, "run/checkpoints/step-0")
	bad := filepath.Join(dir, "bad")
	require.NoError(t, os.Mkdir(bad, 0o777))
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		require.NoError(t, err)
		if strings.HasSuffix(name, "safetensors") {
			b = append(b[:len(b)-4:len(b)-4], nan...)
		}
		require.NoError(t, os.WriteFile(filepath.Join(bad, name), b, 0o666))
	}
	r, err := safetensors.Open(bad)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	for _, args := range [][]string{{"train", c, "--no-tune", "--set", "init.from=" + bad, "--set", "run.dir=" + filepath.Join(dir, "new")},
		{"eval", bad, "--data", filepath.Join(dir, "text.txt"), "--json"}, {"generate", bad, "-n", "3", "--json"},
		{"export", bad, "--out", filepath.Join(dir, "out")}} {
		code, out, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Regexp(t, `bad: tensor "model\.\S+": element \d+ is NaN, expected finite numbers`, errs)
		assert.NotContains(t, out, "NaN")
	}
	assert.NoDirExists(t, filepath.Join(dir, "out"))
	for want, args := range map[string][]string{
		"--filter: no case matches":            {"bench", "--device", "null", "--filter", "no such case"},
		"--profile: no training step matches":  {"bench", "--device", "null", "--filter", "mat", "--profile", filepath.Join(dir, "p")},
		"c.yaml: not a directory":              {"bench", "--device", "null", "--profile", filepath.Join(c, "p")},
		"the folder has no config.yaml":        {"train", bad},
		"batch-size: found 0, expected":        {"eval", bad, "--batch-size", "0"},
		"no model here: expected a run folder": {"generate", t.TempDir()},
	} {
		code, out, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want)
		assert.NotContains(t, out, "NaN")
	}
}

var nan = []byte{0, 0, 0xc0, 0x7f} // as float32

// Numbers that JSON cannot hold do not come up.
func TestEvalOfAHopelessModelIsJSON(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	code, _, errs := command("train", small(t, dir), "--no-tune", "--set", "optimizer={name: sgd, lr: 999}", "--set",
		"train={steps: 2, grad_clip: 0}", "--set", "lr.warmup=0", "--json")
	if code != exitOK {
		require.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "training stopped")
		return
	}
	code, out, errs := command("eval", filepath.Join(dir, "run"), "--json")
	require.Equal(t, exitOK, code, errs)
	var e struct{ Loss, Perplexity float64 }
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	assert.False(t, math.IsInf(e.Perplexity, 0))
}

// A missing argument, or one of another kind, is the user's mistake, and the error names what was expected.
func TestWhatIsNamedIsNoneOfThose(t *testing.T) {
	dir := t.TempDir()
	filter := filepath.Join("..", "..", "examples", "hooks", "quality_filter.wasm")
	for want, args := range map[string][]string{
		"no model is named: expected a run folder, a checkpoint": {"eval", ""},
		"no run: expected its folder":                            {"trace", ""},
		dir + ": the folder has no config.yaml: expected":        {"plan", dir},
		"gpupipe: " + dir + ": is a directory":                   {"hook", "check", filter, "--text", dir},
	} {
		code, out, errs := command(args...)
		assert.Equal(t, exitMistake, code, "%v", args)
		assert.Empty(t, out, "%v", args)
		assert.Contains(t, errs, want)
	}
}

// Every command prints its usage.
func TestEveryHelpHasAnExample(t *testing.T) {
	for _, name := range []string{"train", "eval", "generate", "serve", "export", "topk", "devices", "data", "selftest", "verify",
		"schedule", "plan", "sweep", "lr-range", "study", "bench",
		"hook", "hook check", "hook bench", "hook new", "trace", "worker"} {
		code, out, _ := command(append(strings.Fields(name), "--help")...)
		assert.Equal(t, exitOK, code)
		assert.Regexp(t, `(?s)Examples?:\n.*\n +gpupipe `+name, out)
	}
}
