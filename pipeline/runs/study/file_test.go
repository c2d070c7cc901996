package study

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const smallBase = `base:
  model: {vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 8}
  data: {train: [a.txt], val_fraction: 0.1}
  train: {steps: 4, batch_size: 2, eval_every: 4, save_every: 0}
  lr: {warmup: 1}
`

const twoOptimizers = `optimizers:
  adamw: {lrs: [0.002, 0.001, 0.004], set: {optimizer.weight_decay: 0.2}}
  muon: {lrs: [0.01, 0.02], times_lr: {optimizer.adamw.lr: 0.5}}
`

func grid(t *testing.T, text string, overrides ...string) (*Study, error) {
	t.Helper()
	d, err := strictyaml.Parse("g.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	f := &runs.File{Path: filepath.Join(t.TempDir(), "g.yaml")}
	return parse(d, f, f.Overrides(overrides))
}

func TestEachRunHasItsConfig(t *testing.T) {
	g, err := grid(t, smallBase+twoOptimizers+"set: {train.grad_clip: 0.5}\nmodes: [sync, delay, delay+error_feedback, delay+dc_asgd]\nstages: [1, 2]\ndir: s\n",
		"train.steps=7", "train.microbatches=2", "data.train=[b.txt]")
	require.NoError(t, err)
	c, err := g.Config(Run{"muon", "delay+error_feedback", 2, 0.02, 9})
	require.NoError(t, err)
	assert.Equal(t, "muon", c.Optimizer.Name())
	assert.Equal(t, 0.02, c.Optimizer.Algorithm.LearningRate())
	assert.Equal(t, 0.01, c.Optimizer.AdamW.LR)
	assert.Equal(t, 0.1, c.Optimizer.WeightDecay, "what is set for one optimizer is not for another")
	assert.Equal(t, uint64(9), c.Init.Seed)
	assert.Equal(t, uint64(9), c.Data.Seed)
	assert.Equal(t, 7, c.Train.Steps)
	assert.Equal(t, 0.5, c.Train.GradClip)
	assert.Equal(t, []string{"b.txt"}, c.Data.Train)
	assert.Equal(t, 2, c.Pipeline.Stages)
	assert.Equal(t, 1, c.Pipeline.Delay)
	assert.Equal(t, "2bw", c.Pipeline.Schedule)
	assert.Equal(t, config.StaleAll, c.Pipeline.StaleMicrobatches)
	assert.Equal(t, "error_feedback", c.Pipeline.Correction)
	assert.Equal(t, "s/runs/muon-delay+error_feedback-stages2-lr0.02-seed9", filepath.ToSlash(c.Run.Dir))
	c, err = g.Config(Run{"adamw", "sync", 1, 0.001, 1})
	require.NoError(t, err)
	assert.Equal(t, "adamw", c.Optimizer.Name())
	assert.Equal(t, 0.2, c.Optimizer.WeightDecay)
	assert.Zero(t, c.Pipeline.Delay)
	assert.Equal(t, "none", c.Pipeline.Correction)
	c, err = g.Config(Run{"adamw", "delay+dc_asgd", 1, 0.001, 1})
	require.NoError(t, err)
	assert.Equal(t, "dc_asgd", c.Pipeline.Correction)
	assert.False(t, c.Pipeline.ErrorFeedback)
}

// A mode of part of the batch has as many stale microbatches as the config's microbatches make of it.
func TestModesOfPartOfTheBatch(t *testing.T) {
	g, err := grid(t, smallBase+twoOptimizers+"set: {train.batch_size: 4, train.microbatches: 4}\nmodes: [sync, delay-1of2, delay-1of4+error_feedback]\ndir: s\n")
	require.NoError(t, err)
	for mode, want := range map[string]config.StaleMicrobatches{"sync": config.StaleAuto, "delay-1of2": 2,
		"delay-1of4+error_feedback": 1} {
		c, err := g.Config(Run{"adamw", mode, 1, 0.001, 1})
		require.NoError(t, err)
		assert.Equal(t, want, c.Pipeline.StaleMicrobatches, mode)
	}
	assert.Equal(t, "delay 1/4 + error feedback", g.Modes[2].Title())
}

// A mode may end in wire formats, which are keys of its runs' configs.
func TestModesWithWireFormats(t *testing.T) {
	g, err := grid(t, smallBase+twoOptimizers+"set: {pipeline.wire: bf16, train.microbatches: 2}\nstages: [2]\ndir: s\n"+
		"modes: [sync, sync@int8, delay@exchange-bf16, delay+error_feedback@int8@exchange-bf16]\n")
	require.NoError(t, err)
	for i, want := range []struct{ wire, exchange, title string }{
		{"bf16", "f32", "sync"},
		{"int8", "f32", "sync, int8"},
		{"bf16", "bf16", "delay, exchange in bf16"},
		{"int8", "bf16", "delay + error feedback, int8, exchange in bf16"},
	} {
		m := g.Modes[i]
		assert.Equal(t, want.title, m.Title())
		c, err := g.Config(Run{"adamw", m.Name, 2, 0.001, 1})
		require.NoError(t, err)
		assert.Equal(t, config.Wire{Activations: want.wire, Exchange: want.exchange}, c.Pipeline.Wire, m.Name)
	}
	assert.Equal(t, "error_feedback", g.Modes[3].Correction)
}

func TestDefaults(t *testing.T) {
	g, err := grid(t, smallBase+"dir: s\nseeds: [5, 6]\noptimizers: {a: {lrs: [1], set: {optimizer.name: sgd}}}\n")
	require.NoError(t, err)
	assert.Equal(t, []Mode{{Name: "sync", Correction: "none"}, {Name: "delay", Delay: 1, Correction: "none"},
		{Name: "delay+error_feedback", Delay: 1, Correction: "error_feedback"}}, g.Modes)
	assert.Equal(t, []uint64{5}, g.TuneSeeds)
	assert.Equal(t, Synchronous, g.Tuning)
	assert.Equal(t, []int{1}, g.Stages)
	c, err := g.Config(Run{"a", "sync", 1, 1, 5})
	require.NoError(t, err)
	assert.Equal(t, "sgd", c.Optimizer.Name(), "a label is the optimizer's name unless that is set")
}

func TestTheBaseMayBeAFileBesideTheGrid(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	write("config.yaml", "model: {preset: tiny}\ndata: {train: [a.txt]}\npipeline: {delay: 1, error_feedback: true}\nrun: {dir: elsewhere}\n")
	path := write("study.yaml", "base: config.yaml\ndir: s\n"+twoOptimizers)
	g, err := Load(path, nil)
	require.NoError(t, err)
	c, err := g.Config(Run{"adamw", "sync", 1, 0.001, 1})
	require.NoError(t, err, "the mode is the grid's")
	assert.Zero(t, c.Pipeline.Delay)
	assert.Equal(t, 128, c.Model.DModel)
	var user *usererror.Error
	_, err = Load(write("bad.yaml", "base: none.yaml\ndir: s\n"+twoOptimizers), nil)
	assert.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "bad.yaml:1: base: ")
	assert.ErrorContains(t, err, "none.yaml: no such file")
	_, err = Load(filepath.Join(dir, "no.yaml"), nil)
	assert.ErrorAs(t, err, &user)
}

func TestErrorsNameLineAndKey(t *testing.T) {
	good := smallBase + twoOptimizers + "dir: s\n"
	for text, want := range map[string]string{
		good + "mode: [sync]\n":                                                            "g.yaml:10: mode: unknown key, expected one of base, set, optimizers",
		good + "modes: [delay]\n":                                                          "g.yaml:10: modes: found none called sync",
		good + "modes: [sync, late]\n":                                                     `g.yaml:10: modes: found "late", expected sync, delay, delay-1of4`,
		good + "modes: [sync, sync@fp8]\n":                                                 `g.yaml:10: modes: found "sync@fp8", expected sync followed by @bf16 or @int8, @exchange-bf16, or both`,
		good + "modes: [sync, sync@]\n":                                                    `g.yaml:10: modes: found "sync@", expected sync followed by`,
		good + "modes: [sync, sync@f32]\n":                                                 `g.yaml:10: modes: found "sync@f32", expected sync followed by`,
		good + "modes: [sync, sync@int8@]\n":                                               `g.yaml:10: modes: found "sync@int8@", expected sync followed by`,
		good + "modes: [sync, sync@int8@exchange-int8]\n":                                  `g.yaml:10: modes: found "sync@int8@exchange-int8", expected sync followed by`,
		good + "modes: [sync, sync@exchange-bf16@int8]\n":                                  `g.yaml:10: modes: found "sync@exchange-bf16@int8", expected sync followed by`,
		good + "modes: [sync, late@int8]\n":                                                `g.yaml:10: modes: found "late@int8", expected sync, delay`,
		good + "stages: [2, 1]\nmodes: [sync, sync@int8]\n":                                `g.yaml:10: stages: found [2 1], expected at least 2 with wire formats in modes: nothing travels within one stage`,
		good + "modes: [sync, delay-3of2]\n":                                               `g.yaml:10: modes: found "delay-3of2"`,
		good + "modes: [sync, delay-1of2]\n":                                               `g.yaml:10: modes: delay-1of2: found 1 microbatches, expected a multiple of 2`,
		good + "pipelines: {a: {mode: delay-1of2, seconds: 1}}\n":                          `pipelines.a: mode: found "delay-1of2", expected one of modes`,
		good + "pipelines: {a: {mode: sync}}\n":                                            `g.yaml:10: pipelines.a.seconds: found 0, expected the seconds of a batch`,
		good + "modes: [sync, delay+none]\n":                                               `g.yaml:10: modes: found "delay+none"`,
		good + "modes: [sync, delay, delay]\n":                                             "g.yaml:10: modes: one is given twice",
		good + "modes: 5\n":                                                                "g.yaml:10: modes: found the integer 5, expected a list",
		good + "seeds: []\n":                                                               "g.yaml:10: seeds: found [], expected at least one",
		good + "seeds: [1, 1]\n":                                                           "g.yaml:10: seeds: found [1 1], expected at least one, each once",
		good + "seeds: [-1]\n":                                                             "g.yaml:10: seeds[0]: found the integer -1",
		good + "tune_seeds: []\n":                                                          "g.yaml:10: tune_seeds: found []",
		good + "tuning: none\n":                                                            `g.yaml:10: tuning: found "none", expected synchronous, each or both`,
		good + "stages: [0]\n":                                                             "g.yaml:10: stages: found [0]",
		good + "stages: [5]\n":                                                             "g.yaml:10: pipeline.stages: found 5",
		good + "set: {optimizer.lr: 1}\n":                                                  "g.yaml:10: optimizer.lr is varied by the study: set lrs in the grid instead",
		good + "set: {init.seed: 1}\n":                                                     "g.yaml:10: init.seed is varied by the study: set seeds",
		good + "set: {train: {steps: 4}}\n":                                                "g.yaml:10: train: expected a key with its section",
		good + "set: {train.stepz: 4}\n":                                                   "g.yaml:10: train.stepz: unknown key",
		good + "set: {train.steps: many}\n":                                                `g.yaml:10: train.steps: found text "many"`,
		good + "set: {train.steps: 0}\n":                                                   "train.steps: found 0, expected more: a study compares the validation loss",
		good + "set: {data.val_fraction: 0}\n":                                             "data.val_fraction: found 0, expected more",
		smallBase + "dir: s\n":                                                             "g.yaml: optimizers: not given",
		smallBase + twoOptimizers:                                                          `g.yaml: dir: found "", expected the folder`,
		twoOptimizers + "dir: s\n":                                                         "g.yaml: base: not given",
		"base: 5\ndir: s\n" + twoOptimizers:                                                "g.yaml:1: base: found the integer 5, expected text",
		"base: {modell: {}}\ndir: s\n" + twoOptimizers:                                     "g.yaml:1: modell: unknown key, expected one of model",
		smallBase + "dir: s\noptimizers: {Adam: {lrs: [1]}}\n":                             `g.yaml:7: optimizers: found "Adam", expected a name of small letters`,
		smallBase + "dir: s\noptimizers: {a: {lrs: [1]}}\n":                                `g.yaml:7: optimizer.name: found "a", expected one of`,
		smallBase + "dir: s\noptimizers: {a: {lr: [1]}}\n":                                 "g.yaml:7: optimizers.a.lr: unknown key, expected one of lrs",
		smallBase + "dir: s\noptimizers: {adamw: {}}\n":                                    "g.yaml:7: optimizers.adamw.lrs: found none",
		smallBase + "dir: s\noptimizers: {adamw: {lrs: [1, 1]}}\n":                         "g.yaml:7: optimizers.adamw.lrs: found [1 1], expected positive numbers, each once",
		smallBase + "dir: s\noptimizers: {adamw: {lrs: [0]}}\n":                            "g.yaml:7: optimizers.adamw.lrs: found [0]",
		smallBase + "dir: s\noptimizers: {muon: {lrs: [1], times_lr: {run.dir: 2}}}\n":     "g.yaml:7: run.dir is varied by the study",
		smallBase + "dir: s\noptimizers: {muon: {lrs: [1], times_lr: {train.steps: x}}}\n": `g.yaml:7: optimizers.muon.times_lr.train.steps: found text "x", expected a number`,
		smallBase + "dir: s\noptimizers: {muon: {lrs: [1], set: {optimizer.lr: 2}}}\n":     "g.yaml:7: optimizer.lr is varied by the study",
		smallBase + "dir: s\noptimizers: {sgd: {lrs: [1]}, sgd: {lrs: [1]}}\n":             "g.yaml:7: optimizers.sgd: the key is given twice",
		smallBase + "dir: s\noptimizers: [sgd]\n":                                          "g.yaml:7: optimizers: found a list, expected a section",
	} {
		_, err := grid(t, text)
		assert.ErrorContains(t, err, want, text)
	}
	for override, want := range map[string]string{
		"run.dir=x":     "--set run.dir=x: run.dir is varied by the study",
		"train.stepz=1": "--set train.stepz=1: train.stepz: unknown key",
		"train":         "--set train: train: expected a key with its section",
		"train.steps":   "--set train.steps: expected section.key=value",
	} {
		_, err := grid(t, good, override)
		assert.ErrorContains(t, err, want, override)
	}
}

func FuzzGrid(f *testing.F) {
	f.Add(smallBase + twoOptimizers + "dir: s\nset: {train.steps: 5}\nstages: [1, 2]\n")
	f.Add("base: &a {b: *a}\noptimizers: {c: {lrs: [.nan], times_lr: {d.e: 1}}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := strictyaml.Parse("f", []byte(text))
		if err != nil {
			return
		}
		if g, err := parse(d, &runs.File{Path: "none/g.yaml"}, nil); err == nil {
			needed, _ := g.plan(map[Run]runs.Outcome{})
			assert.NotEmpty(t, needed)
		}
	})
}

// execute is runs.Compare with the results of a study.
func execute(ctx context.Context, g *Study, o runs.Options, progress func(runs.Progress[Run])) (*Report, error) {
	rep, err := runs.Compare(ctx, g, o, progress)
	results, _ := rep.Results.(*Report)
	return results, err
}
