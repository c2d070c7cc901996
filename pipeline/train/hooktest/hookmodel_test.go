package hooktest

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Checkpoints and exports hold the module that builds the model, so the file is needed only to start the run.
func TestCheckpointsHoldTheModule(t *testing.T) {
	dir, module := t.TempDir(), traintest.GPT2(t)
	configure := func(run string) config.Config {
		return traintest.HookModel(t, dir, module,
			"train={steps: 12, batch_size: 8, microbatches: 4, eval_every: 2, eval_batches: 1, save_every: 3}",
			"run.dir="+filepath.Join(dir, run))
	}
	whole := runtest.Until(t, configure("whole"), 0)
	first := runtest.Until(t, configure("legs"), 5)
	bin, err := os.ReadFile(module)
	require.NoError(t, err)
	kept, err := os.ReadFile(filepath.Join(first.Checkpoint, config.ModuleFile))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(bin, kept))

	require.NoError(t, os.Remove(module))
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Resume = true
	last, err := train.Run(context.Background(), configure("legs"), o)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "gpt2.wasm is missing: using the module kept in "+first.Checkpoint)
	assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, last.Checkpoint))
	assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, last.Dir))

	out := filepath.Join(dir, "out")
	e, err := inference.Export(context.Background(), inference.ExportOptions{From: last.Dir, Out: out, Note: n.Note})
	require.NoError(t, err)
	assert.Contains(t, e.Files, config.ModuleFile)
	assert.Contains(t, n.Text[len(n.Text)-1], "transformers does not")
	assert.Equal(t, "gpupipe_hook", traintest.JSONOf(t, filepath.Join(out, "config.json"))["model_type"])
	var losses []float64
	for _, from := range []string{whole.Dir, last.Dir, last.Checkpoint, out} {
		ev, err := inference.Evaluate(context.Background(),
			inference.EvalOptions{From: from, Data: []string{filepath.Join(dir, "text.txt")}, BatchSize: 3,
				Target: inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}})
		require.NoError(t, err)
		losses = append(losses, ev.Loss)
	}
	assert.Equal(t, []float64{losses[0], losses[0], losses[0], losses[0]}, losses)
	assert.Less(t, losses[0], 5.3, "it began at ln 256 = 5.5")
	_, err = train.Run(context.Background(), configure("new"), runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.ErrorContains(t, err, "hook "+module+": stat "+module+": no such file or directory", "a new run has no checkpoint")
	again := traintest.HookModel(t, t.TempDir(), traintest.GPT2(t), "init.from="+out, "train.steps=0")
	res, err := train.Run(context.Background(), again, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	assert.Equal(t, traintest.Files(t, last.Checkpoint)["model.safetensors"], traintest.Files(t, res.Checkpoint)["model.safetensors"],
		"weights to start from")
	_, err = config.Parse("c", nil, []string{"init.from=" + out, "data.train=[a]", "run.dir=r"})
	assert.ErrorContains(t, err, "a hook built this model, expected a Llama; to train it: model: {arch: hook, …}")
}

func TestResumingWithAnotherModuleIsRefused(t *testing.T) {
	dir, module := t.TempDir(), traintest.GPT2(t)
	runtest.Until(t, traintest.HookModel(t, dir, module), 0)
	resume := func(c config.Config) error {
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		_, err := train.Run(context.Background(), c, o)
		return err
	}
	assert.NoError(t, resume(traintest.HookModel(t, dir, module)))
	assert.ErrorContains(t, resume(traintest.HookModel(t, dir, module,
		"hooks=[{file: "+module+", hook: build_model, config: "+traintest.GPT2Config+", seed: 1}]")),
		"hooks: the checkpoint has build_model by module ")
	bin, err := os.ReadFile(module)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(module, append(bin, 0, 2, 1, 'x'), 0o666)) // a section of no meaning
	assert.ErrorContains(t, resume(traintest.HookModel(t, dir, module)),
		"is of another run: hooks: the checkpoint has build_model by module ")

	checkpoint := traintest.StepDir(filepath.Join(dir, "run"), 5)
	require.NoError(t, os.WriteFile(filepath.Join(checkpoint, config.ModuleFile), append(bin, 0, 2, 1, 'x'), 0o666))
	_, err = inference.OpenModel(checkpoint, "")
	assert.ErrorContains(t, err, config.ModuleFile, "a checkpoint that was changed")
}

func TestAnExportWithAnotherModuleIsRefused(t *testing.T) {
	dir := t.TempDir()
	runtest.Until(t, traintest.HookModel(t, dir, traintest.GPT2(t)), 0)
	out := filepath.Join(dir, "out")
	_, err := inference.Export(t.Context(), inference.ExportOptions{From: filepath.Join(dir, "run"), Out: out})
	require.NoError(t, err)
	path := filepath.Join(out, config.ModuleFile)
	bin, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(bin, 0, 2, 1, 'x'), 0o666))
	_, err = inference.OpenModel(out, "")
	assert.ErrorContains(t, err, "config.json: module.sha256: found ")
	require.NoError(t, os.Remove(path))
	_, err = inference.OpenModel(out, "")
	assert.ErrorContains(t, err, config.ModuleFile)
}

func TestAWrittenModelIsPlanned(t *testing.T) {
	c := traintest.HookModel(t, t.TempDir(), traintest.GPT2(t), "pipeline.stages=2")
	p, err := train.CompareSchedules(context.Background(), c, traintest.OpenNull, measure.Options{Modelled: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"embed", "h.0", "h.1", "head"}, p.Units)
	assert.NotEmpty(t, p.Recommended)
	units := p.Devices[0].Units
	require.Len(t, units, 3)
	assert.Equal(t, "h.0", units[1].Name)
	assert.Equal(t, 2, units[1].Alike)
	assert.Positive(t, units[1].Backward)
}

func TestMistakesInWrittenModels(t *testing.T) {
	module := traintest.GPT2(t)
	build := "hooks=[{file: " + module + ", hook: build_model}]"
	for want, overrides := range map[string][]string{
		"gpt2.wasm: build_model: failed: d_model must be a multiple of n_heads": {strings.Replace(build, "build_model",
			"build_model, config: {d_model: 9}", 1)},
		"config: unknown key \"width\"": {strings.Replace(build, "build_model", "build_model, config: {width: 9}", 1)},
		"pipeline.stages: found 5, expected at most one chunk per unit: the model has 4 (embed to head)":            {"pipeline.stages=5"},
		`pipeline.cut: found "[4]", expected ascending numbers from 1 to 3 (0 is embed, 3 head), or names of units`: {"pipeline.stages=2", "pipeline.cut=[4]"},
		"model.vocab_size: found 100: the tokenizer":                                                                {"model.vocab_size=100"},
	} {
		_, err := train.Run(context.Background(), traintest.HookModel(t, t.TempDir(), module, overrides...),
			runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		var user *usererror.Error
		assert.ErrorAs(t, err, &user)
		assert.ErrorContains(t, err, want)
	}
}

// deviceTrains returns a function that trains a model that a module builds, on a device and a real text.
func deviceTrains(t *testing.T) func(overrides ...string) (train.Result, *runtest.Notes) {
	t.Helper()
	text, err := filepath.Abs("../../docs/RATIONALE.md")
	require.NoError(t, err)
	module := traintest.GPT2(t)
	return func(overrides ...string) (train.Result, *runtest.Notes) {
		t.Helper()
		n := &runtest.Notes{}
		c := traintest.HookModel(t, t.TempDir(), module,
			append([]string{"model.seq_len=32", "data={train: [" + text + "], val_fraction: 0.05}",
				"hooks=[{file: " + module + ", hook: build_model, config: {d_model: 32, n_layers: 2, n_heads: 4}}]",
				"lr={warmup: 5, schedule: constant}",
				"optimizer={name: adamw, lr: 0.02}", "train={steps: 30, batch_size: 16, microbatches: 2, eval_every: 30, eval_batches: 2, save_every: 0}"},
				overrides...)...)
		res, err := train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: gputest.Open}, Report: n})
		require.NoError(t, err)
		return res, n
	}
}

// On a device, a model that a module builds learns.
func TestDeviceTrainsAWrittenModel(t *testing.T) {
	long, n := deviceTrains(t)()
	assert.InDelta(t, math.Log(256), n.Steps[0].Loss, 0.1)
	assert.Less(t, *long.ValLoss, long.UnigramEntropy+0.2, "no worse than the frequencies of letters")
}

// The pipelines of such a model give the bits of one device. Package equaltest tests this on the reference executor.
func TestDevicePipelinesOfAWrittenModel(t *testing.T) {
	tier.Rest(t)
	train := deviceTrains(t)
	const short = "train.steps=5"
	one, _ := train(short)
	two, _ := train(short, "pipeline.stages=2")
	assert.True(t, traintest.Files(t, one.Checkpoint)["model.safetensors"] == traintest.Files(t, two.Checkpoint)["model.safetensors"])
	late, _ := train(short, "pipeline.delay=1", "pipeline.stale_microbatches=1", "pipeline.error_feedback=true")
	piped, _ := train(short, "pipeline.stages=2", "pipeline.schedule=2bw", "pipeline.error_feedback=true")
	for name, file := range traintest.Files(t, late.Checkpoint) {
		assert.True(t, file == traintest.Files(t, piped.Checkpoint)[name], name)
	}
	assert.NotEqual(t, traintest.Files(t, one.Checkpoint)["model.safetensors"], traintest.Files(t, late.Checkpoint)["model.safetensors"])
}
