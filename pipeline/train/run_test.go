package train_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRunWritesItsFolder(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir, "train.steps=30", "train.save_every=10", "train.eval_every=10")
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Plots = true
	res, err := train.Run(context.Background(), c, o)
	require.NoError(t, err)
	assert.Equal(t, 30, res.Step)
	assert.Less(t, *res.ValLoss, 4.5, "it began at ln 256 = 5.5")
	assert.Greater(t, res.UnigramEntropy, 1.0)
	require.Len(t, n.Steps, 30)
	assert.InDelta(t, math.Log(256), n.Steps[0].Loss, 0.05)
	assert.Equal(t, c.Model.Count(), n.Started.Parameters)
	assert.NotEmpty(t, n.Started.Optimizer)
	for _, name := range []string{"config.yaml", "metrics.jsonl", "trace.json", "loss.png", "tensorboard",
		"checkpoints/step-10/manifest.json", "checkpoints/step-20", "checkpoints/step-30/model.safetensors",
		"checkpoints/step-30/config.json", "checkpoints/step-30/tokenizer.json"} {
		assert.FileExists(t, existing(t, filepath.Join(c.Run.Dir, name)), name)
	}
	records := traintest.Measurements(t, c.Run.Dir)
	require.Len(t, records, 30)
	for i, r := range records {
		assert.Equal(t, i+1, r.Step)
		assert.Equal(t, float64((i+1)*4*8), r.Values["tokens"])
		_, has := r.Values["val_loss"]
		assert.Equal(t, (i+1)%10 == 0, has)
		for _, name := range []string{"loss", "lr", "grad_norm", "staleness"} {
			assert.Contains(t, r.Values, name)
		}
	}
	assertWatchable(t, c.Run.Dir, 30)
	kept, err := config.Load(filepath.Join(c.Run.Dir, "config.yaml"), nil)
	require.NoError(t, err)
	assert.Equal(t, string(c.SavedYAML()), string(kept.YAML()))
	ev, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: c.Run.Dir, BatchSize: 3,
		Target: inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}})
	require.NoError(t, err)
	assert.InDelta(t, *res.ValLoss, ev.Loss, 1e-6, "another batch size changes nothing but rounding")
	assert.InDelta(t, ev.Loss/math.Ln2, ev.BitsPerByte, 1e-12, "a token is a byte")
	assert.InDelta(t, res.UnigramEntropy, ev.UnigramEntropy, 1e-12)
}

// existing turns a folder into one of its files, for FileExists.
func existing(t *testing.T, path string) string {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return path
	}
	entries, err := os.ReadDir(path)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	return filepath.Join(path, entries[0].Name())
}

func TestTwoRunsOfOneSeedAreEqual(t *testing.T) {
	dir := t.TempDir()
	a, b := traintest.Demo(t, dir), traintest.Demo(t, dir, "run.dir="+filepath.Join(dir, "again"))
	other := traintest.Demo(t, dir, "run.dir="+filepath.Join(dir, "other"), "init.seed=2")
	for _, c := range []config.Config{a, b, other} {
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
	}
	last := func(c config.Config) map[string]string {
		return traintest.Files(t, filepath.Join(c.Run.Dir, "checkpoints/step-6"))
	}
	assert.Equal(t, last(a), last(b))
	assert.Equal(t, traintest.Measurements(t, a.Run.Dir), traintest.Measurements(t, b.Run.Dir))
	assert.NotEqual(t, last(a), last(other))
}

// A run that is interrupted at any time and resumed has the same bits and the same log. Steps are reported one step
// late, so the latest interruption of six steps is after the fourth.
func TestInterruptAndResume(t *testing.T) {
	dir := t.TempDir()
	whole := traintest.Demo(t, dir, "run.dir="+filepath.Join(dir, "whole"))
	_, err := train.Run(context.Background(), whole, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	for stop := 1; stop < 5; stop++ {
		c := traintest.Demo(t, dir, "run.dir="+filepath.Join(dir, fmt.Sprint("stop", stop)))
		ctx, cancel := context.WithCancel(context.Background())
		n := &runtest.Notes{OnStep: func(p train.Progress) {
			if p.Step == stop {
				cancel()
			}
		}}
		res, err := train.Run(ctx, c, runtest.Options(&traintest.Reference{}, n))
		require.NoError(t, err)
		require.True(t, res.Interrupted)
		assert.Equal(t, filepath.Join(c.Run.Dir, "checkpoints", fmt.Sprint("step-", res.Step)), res.Checkpoint)
		require.Less(t, res.Step, 6)
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		again, err := train.Run(context.Background(), c, o)
		require.NoError(t, err)
		assert.Equal(t, 6, again.Step)
		assert.Equal(t, traintest.Files(t, whole.Run.Dir+"/checkpoints/step-6"), traintest.Files(t, c.Run.Dir+"/checkpoints/step-6"),
			"stopped at %d", stop)
		assert.Equal(t, traintest.Measurements(t, whole.Run.Dir), traintest.Measurements(t, c.Run.Dir))
	}
}

// A run that stops after a given step evaluates there, and is resumed to the same bits. A step beyond the end does not
// count.
func TestStopAfter(t *testing.T) {
	for _, layout := range []string{"pipeline.stages=1", "pipeline={schedule: 2bw, stages: 2}"} {
		dir := t.TempDir()
		run := func(name string, stopAfter int) train.Result {
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			o.Resume, o.StopAfter = true, stopAfter
			res, err := train.Run(t.Context(), traintest.Demo(t, dir, layout, "train.save_every=0", "run.dir="+filepath.Join(dir, name)), o)
			require.NoError(t, err)
			return res
		}
		whole := run("whole", 99)
		assert.False(t, whole.Interrupted)
		assert.Equal(t, 6, whole.Step)
		for range 2 { // again, with nothing left to do
			stopped := run("stopped", 3)
			assert.True(t, stopped.Interrupted)
			assert.Equal(t, 3, stopped.Step)
			assert.Equal(t, traintest.StepDir(stopped.Dir, 3), stopped.Checkpoint)
			steps := traintest.Measurements(t, stopped.Dir)
			assert.Len(t, steps, 3)
			assert.Contains(t, steps[2].Values, "val_loss")
		}
		resumed := run("stopped", 0)
		assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, resumed.Checkpoint))
		steps := traintest.Measurements(t, resumed.Dir)
		delete(steps[2].Values, "val_loss")
		delete(steps[2].Values, "val_bits_per_byte")
		assert.Equal(t, traintest.Measurements(t, whole.Dir), steps)
	}
}

// A killed process leaves a log that is ahead of its last checkpoint, and perhaps an incomplete checkpoint.
func TestKilledAndResumed(t *testing.T) {
	dir := t.TempDir()
	whole := traintest.Demo(t, dir)
	_, err := train.Run(context.Background(), whole, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	want, log := traintest.Files(t, whole.Run.Dir+"/checkpoints/step-6"), traintest.Measurements(t, whole.Run.Dir)
	path := filepath.Join(whole.Run.Dir, "checkpoints/step-6/model.safetensors")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[len(b)-1] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o666))
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Resume = true
	_, err = train.Run(context.Background(), whole, o)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "altered: sha256")
	assert.Contains(t, strings.Join(n.Text, "\n"), "resuming at step 4")
	assert.Equal(t, want, traintest.Files(t, whole.Run.Dir+"/checkpoints/step-6"))
	assert.Equal(t, log, traintest.Measurements(t, whole.Run.Dir))
}

func TestResumeOfAFinishedRunDoesNothing(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Resume = true
	res, err := train.Run(context.Background(), c, o)
	require.NoError(t, err)
	assert.Empty(t, n.Steps)
	assert.Equal(t, 6, res.Step)
}

func TestResumeWithoutCheckpointStarts(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Resume = true
	res, err := train.Run(context.Background(), c, o)
	require.NoError(t, err)
	assert.Equal(t, 6, res.Step)
	assert.Contains(t, n.Text[0], "no checkpoint yet")
}

func TestNoStepsIsTheInitialCheckpoint(t *testing.T) {
	c := traintest.Demo(t, t.TempDir(), "train.steps=0")
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(c.Run.Dir, "checkpoints/step-0"), res.Checkpoint)
	w, err := weights.Open(res.Checkpoint, c.Model.Config)
	require.NoError(t, err)
	for _, p := range c.Model.Parameters() {
		got, err := w.Initial(p)
		require.NoError(t, err)
		assert.Equal(t, p.Initial(1), got)
	}
	require.NoError(t, w.Close())
	next := traintest.Demo(t, filepath.Dir(c.Run.Dir), "init.from="+res.Checkpoint, "run.dir="+c.Run.Dir+"2")
	a, err := train.Run(context.Background(), next, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	direct := traintest.Demo(t, filepath.Dir(c.Run.Dir), "run.dir="+c.Run.Dir+"3")
	b, err := train.Run(context.Background(), direct, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	assert.Equal(t, *b.Loss, *a.Loss)
	assert.Equal(t, traintest.Files(t, b.Checkpoint), traintest.Files(t, a.Checkpoint))
}

// The result says which text and how much of it a validation loss was measured on.
func TestValidationIsDescribed(t *testing.T) {
	dir := t.TempDir()
	for batches, want := range map[string]int64{"1": 1, "0": 0} {
		c := traintest.Demo(t, dir, "train.steps=1", "train.eval_every=1", "train.eval_batches="+batches,
			"run.dir="+filepath.Join(dir, batches))
		res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		v := res.Validation
		require.NotNil(t, v)
		assert.NotZero(t, v.Of)
		if want == 0 {
			want = v.Of
		}
		assert.Equal(t, want, v.Batches)
		assert.Equal(t, "held-out text of the run", v.Text)
		if v.Batches < v.Of {
			assert.Equal(t, v.Batches*c.BatchTokens(), v.Tokens)
		}
	}
}

// A model with more tokens than init.from trains, resumes, and names the key where it is missing.
func TestExtendVocab(t *testing.T) {
	dir := t.TempDir()
	first, err := train.Run(context.Background(), traintest.Demo(t, dir, "train.steps=0"),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	wider := []string{"init.from=" + first.Checkpoint, "init.extend_vocab=true", "model.vocab_size=259", "run.dir=" +
		filepath.Join(dir, "wider"), "train.steps=2"}
	c := traintest.Demo(t, dir, wider...)
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.StopAfter = 1
	_, err = train.Run(context.Background(), c, o)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "3 tokens are new: their rows are the mean of the 256 rows in")
	o.StopAfter, o.Resume = 0, true
	res, err := train.Run(context.Background(), c, o)
	require.NoError(t, err)
	w, err := weights.Open(res.Checkpoint, c.Model.Config)
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

func TestResumeRefusesAnotherRun(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir)
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	before := traintest.Measurements(t, c.Run.Dir)
	other := filepath.Join(dir, "other.txt")
	require.NoError(t, os.WriteFile(other, []byte(strings.Repeat("quite another text. ", 50)), 0o666))
	for override, want := range map[string]string{
		"model.n_layers=2":           "model.n_layers: the checkpoint has 1, the config 2",
		"optimizer.name=adamw":       "optimizer.name: the checkpoint has muon, the config adamw",
		"optimizer.moments=bf16":     "optimizer.moments: the checkpoint has f32, the config bf16",
		"data.seed=9":                "data.seed",
		"data.train=[" + other + "]": "the hash of the training tokens",
		"train.steps=3":              "train.steps: found 3, but",
		"init.seed=5":                "init.seed: the checkpoint has 1, the config 5",
	} {
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		_, err := train.Run(context.Background(), traintest.Demo(t, dir, override), o)
		var user *usererror.Error
		assert.ErrorAs(t, err, &user, override)
		assert.ErrorContains(t, err, want, override)
	}
	assert.Equal(t, before, traintest.Measurements(t, c.Run.Dir), "nothing was written")
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Resume = true
	_, err = train.Run(context.Background(), traintest.Demo(t, dir, "train.steps=8", "train.save_every=1"), o)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "train.steps: the checkpoint has 6, the config 8: the new value is used")
}

func TestRunFolderIsNotOverwritten(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	_, err = train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	var user *usererror.Error
	assert.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "holds a run already: continue it with --resume")
}

func TestNaNStopsBeforeTheUpdateAndKeepsTheCheckpoint(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{Poison: from(4)}, &runtest.Notes{}))
	require.ErrorIs(t, err, train.ErrDiverged)
	assert.ErrorContains(t, err, "step 4: the loss is NaN")
	assert.ErrorContains(t, err, "the checkpoint of step 2 is kept")
	latest, problems, err := checkpoint.Latest(c.Run.Dir)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Equal(t, 2, latest.Step)
	assert.Len(t, traintest.Measurements(t, c.Run.Dir), 3)
}

// The real executor on a device that executes nothing: plans, kernels, limits and the loop's records.
func TestNullDevice(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	n := &runtest.Notes{}
	res, err := train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: traintest.OpenNull}, Report: n})
	require.NoError(t, err)
	assert.Equal(t, 6, res.Step)
	assert.Len(t, n.Steps, 6)
	require.Len(t, n.Started.Ranks, 1)
	l := n.Started.Ranks[0]
	assert.Positive(t, l.Kernels)
	assert.Equal(t, l.Memory.Total, l.Memory.Variables+l.Memory.Arena+l.Memory.Inputs+l.Memory.Outputs+l.Memory.Constants)
	assert.Equal(t, l.Memory.Total, l.Allocated)
}

// Each error of the input is found before anything is written.
func TestBadInputWritesNothing(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, data, 0o666))
		return path
	}
	write("text.txt", []byte(strings.Repeat("some text to learn from ", 40)))
	shard := append([]byte{0x28, 0x7e, 0x34, 0x01, 1, 0, 0, 0, 100, 0, 0, 0}, make([]byte, 1012+50)...)
	weights := filepath.Join(dir, "weights")
	require.NoError(t, os.Mkdir(weights, 0o777))
	c := traintest.Demo(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(weights, "config.json"), c.Model.HuggingFace(), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(weights, "model.safetensors"), []byte("\x00\x00\x00\x00\x00\x00\x00\x10{}"), 0o666))
	file := write("file", []byte("x"))
	for override, want := range map[string]string{
		"data.train=[" + filepath.Join(dir, "none.txt") + "]": "none.txt: no such file",
		"data.train=[" + write("empty.txt", nil) + "]":        "empty.txt: no document",
		"data.train=[" + write("binary.txt", []byte("\x7fELF\x00\x00\x01"+strings.Repeat("\x00", 99))) +
			"]": "binary.txt: no text: the file begins as a program",
		"data.train=[" + write("short.txt", []byte("hi")) + "]": "token",
		"data.train=[" + write("cut.bin", shard) + "]":          "cut.bin: ",
		"data.tokenizer=" + write("bad.json", []byte("{")):      "data.tokenizer: ",
		"data.tokenizer=gpt2":                                   `model.vocab_size: found 256: the tokenizer "gpt2" has 50257 tokens, but the model has rows for 256: token 256, " t", has none`,
		"model.vocab_size=100":                                  "model.vocab_size: found 100",
		"pipeline.devices=[webgpu:9]":                           `device "webgpu:9": no such device`,
		"init.from=" + weights:                                  "model.safetensors",
		"init.from=" + weights + " & data.tokenizer=gpt2":       `data.tokenizer: the tokenizer "gpt2" has 50257 tokens, but the model has rows for 256: token 256, " t", has none; init.extend_vocab: true adds rows to those of init.from (` + weights + ")",
		"run.dir=" + filepath.Join(file, "run"):                 "not a directory",
	} {
		_, err := train.Run(context.Background(), traintest.Demo(t, dir, strings.Split(override, " & ")...),
			runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		var user *usererror.Error
		if assert.ErrorAs(t, err, &user, override) {
			assert.ErrorContains(t, err, want, override)
		}
		assert.NoDirExists(t, filepath.Join(dir, "run"), override)
	}
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{PlanError: exec.ErrTooLarge}, &runtest.Notes{}))
	assert.ErrorContains(t, err, "null:0: does not fit the device")
	assert.NoDirExists(t, filepath.Join(dir, "run"))
}

func TestReadOnlyFolder(t *testing.T) {
	if os.Getuid() == 0 {
		// Root writes everywhere but in /proc.
		_, err := train.Run(context.Background(), traintest.Demo(t, t.TempDir(), "run.dir=/proc/gpupipe"),
			runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		var user *usererror.Error
		assert.ErrorAs(t, err, &user)
		return
	}
	dir := t.TempDir()
	c := traintest.Demo(t, dir)
	require.NoError(t, os.Chmod(dir, 0o555))
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	var user *usererror.Error
	assert.ErrorAs(t, err, &user)
	assert.True(t, errors.Is(err, os.ErrPermission))
}

func TestWeightsOfAnotherShapeAreRefused(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir, "train.steps=0")
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	wider := c.Model.Config
	wider.FFN.DFF = 16
	_, err = weights.Open(res.Checkpoint, wider)
	assert.ErrorContains(t, err, `tensor "model.layers.0.mlp.down_proj.weight" has shape [8,12], expected [8,16]`)
	deeper := c.Model.Config
	deeper.NLayers = 2
	_, err = weights.Open(res.Checkpoint, deeper)
	assert.ErrorContains(t, err, `tensor "model.layers.1.input_layernorm.weight" is missing`)
	tied := c.Model.Config
	tied.TieEmbeddings = true
	w, err := weights.Open(res.Checkpoint, tied)
	require.NoError(t, err, "a head that ties make superfluous is passed over")
	require.NoError(t, w.Close())
}

// assertWatchable checks what a run writes for those who watch it.
func assertWatchable(t *testing.T, dir string, steps int) {
	t.Helper()
	records, err := metrics.Read(filepath.Join(dir, "system.jsonl"))
	require.NoError(t, err)
	require.Len(t, records, steps)
	for i, r := range records {
		assert.Equal(t, i+1, r.Step)
		assert.InDelta(t, float64(time.Now().Unix()), r.Values["time"], 3600)
		assert.Contains(t, r.Values, "system/ranks.0/memory")
		if i > 0 {
			assert.GreaterOrEqual(t, r.Values["system/ranks.0/busy"], 0.0)
			assert.LessOrEqual(t, r.Values["system/ranks.0/busy"], 1.0)
			assert.Contains(t, r.Values, "system/ranks.0/busy")
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	require.NoError(t, err)
	var kinds []string
	for line := range strings.Lines(string(text)) {
		var e struct {
			Event string
			Start struct {
				Steps int
				Ranks []struct{ Name string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		if kinds = append(kinds, e.Event); e.Event == "start" {
			assert.Equal(t, steps, e.Start.Steps)
			assert.Len(t, e.Start.Ranks, 1)
		}
	}
	assert.Equal(t, []string{"start", "checkpoint", "checkpoint", "checkpoint", "end"}, kinds)
}

// train.eval_every: 0 evaluates at the end only.
func TestEvaluationAtTheEndOnly(t *testing.T) {
	c := traintest.Demo(t, t.TempDir(), "train.eval_every=0", "train.save_every=2")
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	records := traintest.Measurements(t, c.Run.Dir)
	require.Len(t, records, 6)
	for i, r := range records {
		_, has := r.Values["val_loss"]
		assert.Equal(t, i == 5, has, "step %d", r.Step)
	}
	assert.InDelta(t, records[5].Values["val_loss"], *res.ValLoss, 0)
}
