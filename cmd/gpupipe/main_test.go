package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/testing/lossylink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary stand for the command itself, for what needs a process.
func TestMain(m *testing.M) {
	lossylink.Enter()
	switch os.Getenv("GPUPIPE_TEST_COMMAND") {
	case "":
	case "dies":
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
	case "another build":
		hideToken()
		os.Exit(program("another build"))
	case "removed":
		self, _ := os.Executable()
		_ = os.Remove(self)
		main()
	default:
		main()
	}
	os.Exit(m.Run())
}

// command runs the command line in this process.
func command(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	a := &app{ctx: context.Background(), stdout: &out, stderr: &err}
	code = a.run(args)
	return code, out.String(), err.String()
}

// Without hooks there is no folder for compiled ones.
func TestOnlyHooksHaveAFolder(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	t.Setenv("LocalAppData", cache)
	c := small(t, t.TempDir())
	code, _, errs := command("train", c, "--device", "null", "--set", "train.steps=1")
	require.Equal(t, exitOK, code, errs)
	found := func() bool {
		dir, err := os.UserCacheDir()
		require.NoError(t, err)
		_, err = os.Stat(filepath.Join(dir, "gpupipe", "hooks"))
		return err == nil
	}
	assert.False(t, found())
	c = small(t, t.TempDir())
	code, _, errs = command("train", c, "--device", "null", "--set", "train.steps=1", "--set",
		"hooks=[{file: ../../examples/hooks/early_stopping.wasm, hook: on_metrics}]")
	require.Equal(t, exitOK, code, errs)
	assert.True(t, found())
}

// small is a config file of a model that trains in moments; its run is in dir/run.
func small(t *testing.T, dir string) string {
	t.Helper()
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the cat sat on the mat. a dog ran to the cat. ", 60)), 0o666))
	path := filepath.Join(dir, "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`model: {vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2, d_ff: 24, seq_len: 16}
data: {train: [`+text+`], val_fraction: 0.1}
train: {steps: 12, batch_size: 4, microbatches: 2, eval_every: 4, save_every: 2}
optimizer: {name: muon, adamw: {lr: 0.01}}
lr: {warmup: 2}
run: {dir: `+filepath.Join(dir, "run")+`}
`), 0o666))
	return path
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}} {
		code, out, _ := command(args...)
		assert.Equal(t, exitOK, code)
		for _, want := range []string{"train", "eval", "generate", "devices", "data", "Examples:", "Exit codes:"} {
			assert.Contains(t, out, want)
		}
	}
	code, out, _ := command("train", "--help")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "--set=SECTION.KEY=VALUE")
	assert.Contains(t, out, "gpupipe train runs/a --resume")
}

func TestHelpFitsATerminalOf80Columns(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Vars(targetVars()), kong.Vars{"version": ""})
	require.NoError(t, err)
	pages := [][]string{nil}
	for _, leaf := range parser.Model.Leaves(true) {
		pages = append(pages, strings.Fields(leaf.FullPath())[1:])
	}
	require.Greater(t, len(pages), 20)
	for _, page := range pages {
		code, out, _ := command(append(page, "--help")...)
		assert.Equal(t, exitOK, code, page)
		assert.Regexp(t, `(?m)^Examples?:$`, out, page)
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, table.Width(strings.TrimRight(line, "\n")), 80, "gpupipe %s --help: %s", strings.Join(page, " "), line)
		}
	}
}

func TestOutputFitsATerminalOf80Columns(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	c := small(t, dir)
	for _, args := range [][]string{
		{"train", c, "--device", "null", "--profile"},
		{"plan", c, "--stages", "2", "--modelled", "--set", "pipeline.devices=[null:0]", "--memory", "1GiB"},
		{"plan", c, "--stages", "2", "--modelled", "--set", "pipeline.devices=[null:0]", "--memory", "1GiB", "--set",
			"train.microbatches=4"},
		{"config"},
		{"verify", "--quick", "--device", "null", "--batches", "6", "--filter", "resumed"},
		{"data", "--out", "a/folder/with/a/very/long/name", "a/file/that/does/not/exist/and/has/a/long/name.txt"},
	} {
		var out strings.Builder
		columns := func() int { return 80 }
		a := &app{ctx: t.Context(), stdout: &out, stderr: &out, stdoutColumns: columns, stderrColumns: columns}
		assert.NotEqual(t, exitFailure, a.run(args), "%s: %s", args, &out)
		for line := range strings.Lines(out.String()) {
			line = line[strings.LastIndex(line, "\r")+1:]  // what stays of a line that is written again
			if table.Width(strings.TrimSpace(line)) > 80 { // a path is one word
				assert.Contains(t, line, dir, "gpupipe %s: %s", strings.Join(args, " "), line)
			}
		}
	}
}

func TestTrainOnTheNullDevice(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	code, out, errs := command("train", c, "--device", "null", "--profile")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"stage 0 on null:0", "OF PEAK", "profile     " + filepath.Join(dir, "run", "profile.html"),
		"model.d_model: 16", "(all other keys have their defaults", "device      null:0", "parameters", "memory ", "arena",
		"muon, lr 0.02, decay 0.1: model.layers.*.self_attn.q_proj[", "step 12/12",
		"unigram entropy", "checkpoints/step-12", "loss.png"} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "seed:", "a default")
	assert.NotContains(t, out, "\r", "plain lines where there is no terminal")
	code, out, errs = command("train", "--config", c, "--device", "null", "--json", "--set", "run.dir="+dir+"/json", "--no-tune")
	require.Equal(t, exitOK, code, errs)
	events := map[string]int{}
	for line := range strings.Lines(out) {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		events[e["event"].(string)]++
	}
	assert.Equal(t, map[string]int{"start": 1, "step": 12, "result": 1}, events)
}

func TestMistakesExitWith2AndWriteNothing(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	null := []string{"--device", "null"}
	for want, args := range map[string][]string{
		"unknown flag --nope":                             {"train", c, "--nope"},
		"unexpected argument frobnicate":                  {"frobnicate"},
		"no config: expected":                             {"train"},
		"c.yaml: no such file":                            {"train", filepath.Join(dir, "no", "c.yaml")},
		"--set train.stepz=1: train.stepz: unknown key":   append([]string{"train", c, "--set", "train.stepz=1"}, null...),
		"--set model.d_model=15: model.d_model: found 15": append([]string{"train", c, "--set", "model.d_model=15"}, null...),
		`device "webgpu:99": no such device`:              {"train", c, "--device", "webgpu:99"},
		`device "cuda:0": unknown backend`:                {"train", c, "--device", "cuda:0"},
		`device "webgpu:x"`:                               {"train", c, "--device", "webgpu:x"},
		`device "vulkan:99": no such device`:              {"train", c, "--device", "vulkan:99"},
		"none.txt: no such file":                          append([]string{"train", c, "--set", "data.train=[none.txt]"}, null...),
		"two configs: found":                              {"train", c, "--config", c},
		"no such file or folder":                          {"eval", filepath.Join(dir, "none")},
		"temperature: found -1":                           {"generate", dir, "--temperature=-1"},
		"top-p: found 0":                                  {"generate", dir, "--top-p", "0"},
		"tokens: found 0":                                 {"generate", dir, "-n", "0"},
		"config.json":                                     {"generate", dir},
		"tokenizer \"gpt9\"":                              {"data", c, "--out", filepath.Join(dir, "out"), "--tokenizer", "gpt9"},
		"none.txt":                                        {"data", "none.txt", "--out", filepath.Join(dir, "out")},
		"missing flags: --out":                            {"data", "none.txt"},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want, args)
	}
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

// listed is a device in devices --json.
type listed struct {
	Name, Kind string
	Limits     target.Limits
	Heaps      []vulkan.Heap `json:"memory_heaps"`
	Subgroup   []int         `json:"subgroup_sizes"`
	Import     int64         `json:"import_alignment"`
}

func TestDevices(t *testing.T) {
	code, out, errs := command("devices")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "webgpu:0")
	code, out, _ = command("devices", "--json")
	require.Equal(t, exitOK, code)
	var infos []listed
	require.NoError(t, json.Unmarshal([]byte(out), &infos))
	require.NotEmpty(t, infos)
	var order []int
	var names []string
	for _, d := range infos {
		assert.Positive(t, d.Limits.MaxBindings)
		assert.Equal(t, d.Name == "cpu:0", d.Limits.Native)
		order, names = append(order, listOrder(device.Kind(d.Kind))), append(names, d.Name)
	}
	assert.IsNonDecreasing(t, order, "GPUs, the CPU, software adapters")
	assert.Contains(t, names, "webgpu:0")
	if runtime.GOOS != "linux" {
		return // Vulkan's backend is for Linux
	}
	assert.Contains(t, names, "cpu:0")
	i := slices.Index(names, "vulkan:0")
	require.Positive(t, i)
	require.NotEmpty(t, infos[i].Heaps)
	assert.NotEmpty(t, infos[i].Heaps[0].Types)
	assert.Len(t, infos[i].Subgroup, 2)
	if infos[i].Kind == string(device.Software) {
		assert.Positive(t, infos[i].Import)
	}
}

func TestData(t *testing.T) {
	dir := t.TempDir()
	small(t, dir)
	out := filepath.Join(dir, "shards")
	code, text, errs := command("data", filepath.Join(dir, "text.txt"), "--tokenizer", "bytes", "--out", out, "--shard-tokens", "1000",
		"--val-tokens", "500")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, text, "val_000000.bin")
	assert.FileExists(t, filepath.Join(out, "train_000001.bin"))
	code, _, errs = command("data", filepath.Join(dir, "text.txt"), "--tokenizer", "bytes", "--out", out, "--shard-tokens", "900",
		"--val-tokens", "500")
	assert.Equal(t, exitMistake, code, "other shards are in the way")
	assert.NotEmpty(t, errs)
}

// The whole way on the machine's own device: train, evaluate, sample.
func TestTrainEvalGenerate(t *testing.T) {
	dir := t.TempDir()
	code, out, errs := command("train", small(t, dir), "--no-tune", "--set", "train.steps=60", "--set", "train.save_every=0", "--json")
	require.Equal(t, exitOK, code, errs)
	last := strings.Split(strings.TrimSpace(out), "\n")
	var e struct {
		Result struct {
			ValLoss float64 `json:"val_loss"`
			Entropy float64 `json:"unigram_entropy"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(last[len(last)-1]), &e))
	assert.Less(t, e.Result.ValLoss, e.Result.Entropy, "it has learned more than which letters are common")
	code, out, errs = command("eval", filepath.Join(dir, "run"), "--json")
	require.Equal(t, exitOK, code, errs)
	var ev struct{ Loss, Perplexity float64 }
	require.NoError(t, json.Unmarshal([]byte(out), &ev))
	assert.InEpsilon(t, e.Result.ValLoss, ev.Loss, 1e-5)
	sample := []string{"generate", filepath.Join(dir, "run"), "--prompt", "the ", "-n", "30", "--seed", "3"}
	code, out, errs = command(sample...)
	require.Equal(t, exitOK, code, errs)
	assert.True(t, strings.HasPrefix(out, "the "))
	assert.Greater(t, len(out), 30)
	_, again, _ := command(sample...)
	assert.Equal(t, out, again)
}

// start runs the command in a process of its own.
func start(t *testing.T, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "GPUPIPE_TEST_COMMAND=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

// until reads lines up to the report of a step.
func until(t *testing.T, lines *bufio.Scanner, step string) {
	t.Helper()
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"event":"step"`) && strings.Contains(lines.Text(), step) {
			return
		}
	}
	t.Fatalf("the run ended before %s", step)
}

func weights(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	for _, name := range []string{"model.safetensors", "optimizer.safetensors"} {
		b, err := os.ReadFile(filepath.Join(dir, "run/checkpoints/step-12", name))
		require.NoError(t, err)
		all = append(all, string(b))
	}
	return all
}

// Killed, or interrupted, and resumed: the bits of the uninterrupted run, on the machine's own device and on a pipeline
// of three logical devices of it.
func TestKilledInterruptedAndResumed(t *testing.T) {
	tier.Rest(t)
	for name, extra := range map[string][]string{
		"one stage": {"--no-tune"},
		"2bw":       {"--no-tune", "--set", "train.microbatches=4", "--set", "pipeline={schedule: 2bw, stages: 3}"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(args ...string) []string { return append(append([]string{"train"}, args...), extra...) }
			whole := t.TempDir()
			code, _, errs := command(run(small(t, whole))...)
			require.Equal(t, exitOK, code, errs)
			want := weights(t, whole)

			killed := t.TempDir()
			c := small(t, killed)
			cmd, lines := start(t, run(c, "--json")...)
			until(t, lines, `"step":7`)
			require.NoError(t, cmd.Process.Kill())
			assert.Error(t, cmd.Wait())
			code, _, errs = command("train", filepath.Join(killed, "run"), "--resume", "--no-tune")
			require.Equal(t, exitOK, code, errs)
			assert.Equal(t, want, weights(t, killed))

			stopped := t.TempDir()
			c = small(t, stopped)
			cmd, lines = start(t, run(c, "--json")...)
			until(t, lines, `"step":3`)
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
			for lines.Scan() {
			}
			require.Error(t, cmd.Wait())
			assert.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode())
			code, _, errs = command(run(c, "--resume")...)
			require.Equal(t, exitOK, code, errs)
			assert.Equal(t, want, weights(t, stopped))
		})
	}
}

// On a terminal, generated text cannot change the terminal's state; a file gets the model's bytes.
func TestGenerateEscapesControlBytes(t *testing.T) {
	dir := t.TempDir()
	code, _, errs := command("train", small(t, dir), "--device", "null", "--set", "train.steps=1")
	require.Equal(t, exitOK, code, errs)
	generate := func(columns func() int) string {
		var out, errs bytes.Buffer
		a := &app{ctx: context.Background(), stdin: strings.NewReader("\x1b[2Jhi\n"), stdout: &out, stderr: &errs, stdoutColumns: columns}
		require.Equal(t, exitOK, a.run([]string{"generate", filepath.Join(dir, "run"), "--device", "null", "--prompt", "-", "-n", "2"}),
			errs.String())
		return out.String()
	}
	assert.True(t, strings.HasPrefix(generate(nil), "\x1b[2Jhi\n"))
	assert.True(t, strings.HasPrefix(generate(func() int { return 80 }), `\x1b[2Jhi`+"\n"))
}

func TestHelpHidesTheWorker(t *testing.T) {
	_, out, _ := command("--help")
	assert.NotContains(t, out, "worker")
	code, out, _ := command("worker", "--help")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "Computes on one device for another process")
}

func TestDataNamesItsFlags(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "a.jsonl")
	require.NoError(t, os.WriteFile(text, []byte(`{"body":"a text"}`+"\n"), 0o666))
	for want, args := range map[string][]string{
		`no field "text", found ["body"]; --field names the field to read`:  nil,
		`--tokenizer: tokenizer "gpt9": no such file`:                       {"--tokenizer", "gpt9"},
		"--shard-tokens: found 0, expected an integer from 1 to 2147483647": {"--shard-tokens", "0"},
		"--val-tokens: found -1, expected an integer from 0 to 2147483647":  {"--val-tokens=-1"},
		"--val and --val-tokens: expected one of the two":                   {"--val", text, "--val-tokens", "5"},
		`--field: found "", expected the name of a field`:                   {"--field", ""},
	} {
		code, _, errs := command(append([]string{"data", text, "--out", filepath.Join(dir, "out")}, args...)...)
		assert.Equal(t, exitMistake, code, errs)
		assert.Contains(t, errs, want)
		assert.NotContains(t, errs, "data.")
	}
}
