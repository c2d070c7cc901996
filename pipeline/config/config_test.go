package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const smallConfig = `model: {preset: tiny}
data:
  train: [a.txt]
run: {dir: runs/x}
`

func TestDefaultsAreWrittenOutAndReadBack(t *testing.T) {
	c, err := Parse("c.yaml", []byte(smallConfig), nil)
	require.NoError(t, err)
	assert.Equal(t, 128, c.Model.DModel)
	assert.Equal(t, 0.02, c.Optimizer.Algorithm.LearningRate())
	assert.True(t, c.Data.Shuffle)
	again, err := Parse("kept.yaml", c.YAML(), nil)
	require.NoError(t, err)
	assert.Equal(t, c.YAML(), again.YAML())
	assert.Equal(t, c.Model, again.Model)
}

func TestOverrides(t *testing.T) {
	c, err := Parse("c.yaml", []byte(smallConfig), []string{
		"train.steps=7", "optimizer.name=adamw", "optimizer.adamw.betas=[0.8, 0.99]", "data.train=[b.txt, c.txt]",
		"model.n_layers=2", "optimizer.adamw.lr=1e-3", "data={tokenizer: gpt2, train: [d.txt]}",
	})
	require.NoError(t, err)
	assert.Equal(t, 7, c.Train.Steps)
	assert.Equal(t, [2]float64{0.8, 0.99}, c.Optimizer.Algorithm.(*optim.AdamW).Betas)
	assert.Equal(t, []string{"d.txt"}, c.Data.Train)
	assert.Equal(t, "gpt2", c.Data.Tokenizer)
	assert.Equal(t, 2, c.Model.NLayers)
	assert.Equal(t, 1e-3, c.Optimizer.Algorithm.LearningRate(), "adamw's rate is optimizer.adamw.lr unless optimizer.lr is given")
	c, err = Parse("config", nil, []string{"model.preset=tiny", "data.train=[a]", "run.dir=r"})
	require.NoError(t, err, "no file is needed")
	assert.Equal(t, "r", c.Run.Dir)
}

func TestConfigErrorsNameLineAndKey(t *testing.T) {
	for text, want := range map[string]string{
		smallConfig + "trian: {}\n":                             "c.yaml:5: trian: unknown key, expected one of model, init, data",
		smallConfig + "train: {steps: 5,\n  stepz: 6}\n":        "c.yaml:6: train.stepz: unknown key, expected one of steps",
		smallConfig + "train:\n  steps: many\n":                 `c.yaml:6: train.steps: found text "many", expected an integer`,
		smallConfig + "train: {steps: 1.5}\n":                   "c.yaml:5: train.steps: found the number 1.5, expected an integer",
		smallConfig + "train: {steps: 99999999999999999999}\n":  "c.yaml:5: train.steps: found",
		smallConfig + "train: {steps: 5, steps: 6}\n":           "c.yaml:5: train.steps: the key is given twice",
		smallConfig + "---\nlr: {warmup: 3}\n":                  "c.yaml:5: a second document",
		smallConfig + "...\n[":                                  "c.yaml: ",
		"":                                                      "c.yaml: model: not given, expected {preset: one of dots1-142b, llama3.1-8b",
		"model: {}\n":                                           "c.yaml:1: model: not given",
		"model: {preset: tiny}\n":                               "c.yaml: data.train: found [], expected at least one file",
		smallConfig + "train: 5\n":                              "c.yaml:5: train: found the integer 5, expected a section with the keys steps",
		smallConfig + "optimizer: {lr: fast}\n":                 `c.yaml:5: optimizer.lr: found text "fast", expected a number`,
		smallConfig + "optimizer: {lr: .nan}\n":                 "c.yaml:5: optimizer.lr: found the number .nan, expected a finite number",
		smallConfig + "optimizer: {lr: -1}\n":                   "c.yaml:5: optimizer.lr: found -1, expected a number of at least 0",
		smallConfig + "optimizer: {adamw: {betas: [0.9]}}\n":    "c.yaml:5: optimizer.adamw.betas: found a list of 1, expected 2 elements",
		smallConfig + "optimizer: {adamw: {betas: [0.9, x]}}\n": "c.yaml:5: optimizer.adamw.betas[1]: found text",
		smallConfig + "optimizer:\n  name: adam\n": `c.yaml:6: optimizer.name: found "adam", expected one of ` +
			strings.Join(optim.OptimizerNames(), ", "),
		smallConfig + "optimizer: {betas: [0.9, 0.95]}\n":                            "c.yaml:5: optimizer.betas: found a list, expected none with muon: AdamW's are optimizer.adamw.betas",
		smallConfig + "optimizer: {name: adan, betas: [0.9, 0.95]}\n":                "c.yaml:5: optimizer.betas: found a list of 2, expected 3 elements",
		smallConfig + "optimizer: {name: lion, betas: [0.9, 1]}\n":                   "c.yaml:5: optimizer.betas: found 1, expected a number of at least 0 and below 1",
		smallConfig + "optimizer: {name: soap, eps: 0}\n":                            "c.yaml:5: optimizer.eps: found 0, expected a number from 1e-30 to 1",
		smallConfig + "optimizer: {name: soap, soap: {precondition_frequency: 0}}\n": "c.yaml:5: optimizer.soap.precondition_frequency: found 0, expected an integer of at least 1",
		smallConfig + "optimizer: {soap: {max_precond_dim: -1}}\n":                   "c.yaml:5: optimizer.soap.max_precond_dim: found -1, expected an integer of at least 1",
		smallConfig + "optimizer: {soap: {shampoo_beta: 1}}\n":                       "c.yaml:5: optimizer.soap.shampoo_beta: found 1, expected a number of at least 0 and below 1",
		smallConfig + "optimizer: {gamma: -1}\n":                                     "c.yaml:5: optimizer.gamma: found -1, expected a number of at least 0",
		smallConfig + "optimizer: {beta2: 2}\n":                                      "c.yaml:5: optimizer.beta2: found 2, expected a number of at least 0 and below 1",
		smallConfig + "lr: {schedule: cosin}\n":                                      `c.yaml:5: lr.schedule: found "cosin", expected one of cosine`,
		smallConfig + "train: {batch_size: 5, microbatches: 2}\n":                    "c.yaml:5: train.batch_size: found 5, expected a multiple of train.microbatches (2)",
		smallConfig + "train: {nonfinite: ignore}\n":                                 `c.yaml:5: train.nonfinite: found "ignore", expected stop or skip`,
		smallConfig + "train: {precision: fp16}\n":                                   `c.yaml:5: train.precision: found "fp16", expected one of f32, f16, bf16`,
		smallConfig + "train: {precision: bf16, loss_scale: {initial: 8}}\n":         "c.yaml:5: train.loss_scale: found a section, expected no such key: only train.precision f16 has a loss scale, and it is bf16",
		smallConfig + "train: {precision: f16, loss_scale: {initial: 33554432}}\n":   "c.yaml:5: train.loss_scale.initial: found 33554432, expected a power of two from 1 to 16777216",
		smallConfig + "train: {precision: f16, loss_scale: {initial: 3}}\n":          "c.yaml:5: train.loss_scale.initial: found 3, expected a power of two from 1 to 16777216",
		smallConfig + "train: {precision: f16, loss_scale: {growth_every: 0}}\n":     "c.yaml:5: train.loss_scale.growth_every: found 0, expected an integer from 1 to 16777216",
		smallConfig + "train: {precision: f16, loss_scale: 8}\n":                     "c.yaml:5: train.loss_scale: found the integer 8, expected a section with the keys initial, growth_every",
		smallConfig + "pipeline: {stages: 11}\n":                                     "c.yaml:5: pipeline.stages: found 11, expected at most one chunk per unit: the model has 10 (embed to head)",
		smallConfig + "pipeline: {delay: 2}\n":                                       "c.yaml:5: pipeline.delay: found 2, expected an integer from 0 to 1",
		smallConfig + "pipeline: {schedule: 1f1b, delay: 1}\n":                       "c.yaml:5: pipeline.delay: found 1, expected 0, the delay of schedule 1f1b",
		smallConfig + "pipeline: {schedule: pipedream}\n":                            `c.yaml:5: pipeline.schedule: found "pipedream", expected one to train with (sync, ` + strings.Join(schedule.TrainableNames(), ", ") + `): its delay differs by stage`,
		smallConfig + "pipeline: {schedule: 2bw, stages: 2}\n":                       "c.yaml: train.microbatches: found 1, expected at least one per stage: with fewer, a batch would start before the update that it needs, and two versions of the weights would not be enough. To use 2bw, set train.microbatches to 2",
		smallConfig + "pipeline: {schedule: none.txt}\n": `c.yaml:5: pipeline.schedule: found "none.txt", expected one of sync, ` +
			strings.Join(schedule.TrainableNames(), ", ") + `, or a schedule file`,
		smallConfig + "pipeline: {error_feedback: true}\n":                                                        "c.yaml: pipeline.correction: found \"error_feedback\", expected none",
		smallConfig + "pipeline: {cut: [2]}\n":                                                                    `c.yaml:5: pipeline.cut: found "[2]", expected 0 places`,
		smallConfig + "pipeline: {stages: 3, cut: [3, 2]}\n":                                                      `c.yaml:5: pipeline.cut: found "[3, 2]", expected ascending numbers from 1 to 5 (0 is embed, 5 head), or names of units, as layers.0.mlp`,
		smallConfig + "pipeline: {stages: 2, cut: [layers.4.mlp]}\n":                                              `c.yaml:5: pipeline.cut: found "[layers.4.mlp]", expected ascending numbers`,
		smallConfig + "pipeline: {stages: 3, cut: [layers.1.mlp, 2]}\n":                                           `c.yaml:5: pipeline.cut: found "[layers.1.mlp, 2]", expected ascending numbers`,
		smallConfig + "pipeline: {stages: 2, cut: [2.5]}\n":                                                       `c.yaml:5: pipeline.cut[0]: found the number 2.5, expected a name, as layers.0.mlp, or the number of a layer`,
		smallConfig + "pipeline: {stages: 2, cut: [-1]}\n":                                                        `c.yaml:5: pipeline.cut[0]: found the integer -1, expected a name`,
		smallConfig + "pipeline: {stages: 2, cut: [0]}\n":                                                         `c.yaml:5: pipeline.cut: found "[0]", expected ascending numbers`,
		smallConfig + "pipeline: {stages: 2, cut: [embed]}\n":                                                     `c.yaml:5: pipeline.cut: found "[embed]", expected ascending numbers`,
		smallConfig + "pipeline: {wire: fp8}\n":                                                                   `c.yaml:5: pipeline.wire: found "fp8", expected one of f32, bf16, int8`,
		smallConfig + "pipeline: {wire_exchange: int8}\n":                                                         `c.yaml:5: pipeline.wire_exchange: found "int8", expected one of f32, bf16`,
		smallConfig + "pipeline: {isolate: yes}\n":                                                                `c.yaml:5: pipeline.isolate: found "yes", expected one of none, process`,
		smallConfig + "pipeline: {restarts: -1}\n":                                                                "c.yaml:5: pipeline.restarts: found -1, expected an integer from 0 to",
		smallConfig + "pipeline: {watchdog: soon}\n":                                                              `c.yaml:5: pipeline.watchdog: found "soon", expected a time from 1s to 1000h, as in 90s or 5m`,
		smallConfig + "pipeline: {watchdog: 900ms}\n":                                                             `c.yaml:5: pipeline.watchdog: found "900ms", expected a time from 1s to 1000h`,
		smallConfig + "pipeline: {watchdog: 1001h}\n":                                                             `c.yaml:5: pipeline.watchdog: found "1001h", expected a time from 1s to 1000h`,
		smallConfig + "pipeline: {replicas: 2}\n":                                                                 "train.microbatches: found 1, expected a multiple of pipeline.replicas (2)",
		smallConfig + "pipeline: {devices: [a, b]}\n":                                                             "c.yaml:5: pipeline.devices: found",
		smallConfig + "hooks: [a.wasm]\n":                                                                         `c.yaml:5: hooks[0]: found text "a.wasm", expected a section with the keys file, hook, config, seed`,
		smallConfig + "hooks: [{file: a}]\n":                                                                      `c.yaml: hooks[0].hook: found "", expected one of build_loss, build_model, map_document, map_batch, token_weights, learning_rate, on_metrics`,
		smallConfig + "hooks:\n- hook: build_loss\n":                                                              `hooks[0].file: found "", expected the name of a WebAssembly module`,
		smallConfig + "hooks: [{file: a, hook: build_loos}]\n":                                                    `c.yaml:5: hooks[0].hook: found "build_loos", expected one of`,
		smallConfig + "hooks: [{file: a, hook: loss_grad}]\n":                                                     "token_weights, learning_rate, on_metrics: loss_grad is for checking only: gpupipe hook check",
		smallConfig + "hooks: [{file: a, hook: loss_scalars}]\n":                                                  "loss_scalars is called where build_loss of its module asks for scalars",
		smallConfig + "hooks: [{file: a, hook: build_loss, configs: {}}]\n":                                       "c.yaml:5: hooks[0].configs: unknown key",
		smallConfig + "hooks: [{file: a, hook: build_loss, config: 5}]\n":                                         "c.yaml:5: hooks[0].config: found the integer 5, expected a section",
		smallConfig + "hooks: [{file: a, hook: build_loss, config: {a: [.nan]}}]\n":                               "c.yaml:5: hooks[0].config: it has no form in JSON",
		smallConfig + "hooks: [{file: a, hook: build_loss, config: {a: &x 1}}]\n":                                 "c.yaml:5: hooks[0].config: anchors and aliases are not supported",
		smallConfig + "hooks: [{file: a, hook: build_loss, config: {a: 1, a: 2}}]\n":                              "c.yaml:5: hooks[0].config.a: the key is given twice",
		smallConfig + "hooks: [{file: a, hook: build_loss, on_error: skip}]\n":                                    `c.yaml:5: hooks[0].on_error: found "skip", expected nothing: only map_document, map_batch, token_weights take it`,
		smallConfig + "hooks: [{file: a, hook: map_document, on_error: panic}]\n":                                 `c.yaml:5: hooks[0].on_error: found "panic", expected stop or skip`,
		smallConfig + "hooks:\n- {file: a, hook: map_document}\n- {file: a, hook: build_loss, memory_mb: 5000}\n": "c.yaml:7: hooks[1].memory_mb: found 5000, expected an integer from 1 to 4096",
		smallConfig + "hooks: [{file: a, hook: build_loss, seconds: -1}]\n":                                       "c.yaml:5: hooks[0].seconds: found -1",
		smallConfig + "hooks: [{file: a, hook: build_loss}, {file: b, hook: build_loss}]\n":                       `c.yaml:5: hooks: found "2 of build_loss", expected at most one`,
		smallConfig + "init: &a {seed: 1}\n":                                                                      "c.yaml:5: init: anchors and aliases are not supported",
		smallConfig + "init: [1\n":                                                                                "c.yaml: line ",
		smallConfig + "data: [a]\n":                                                                               "c.yaml", // a key twice
		"model: {preset: tiny, d_model: 130}\n" + smallConfig[22:]:                                                "c.yaml:1: model.d_model: found 130, expected a multiple of n_heads (4)",
		"model: {preset: big}\n" + smallConfig[22:]:                                                               `c.yaml:1: model.preset: unknown preset "big"`,
		"model: {d_model: 64}\n" + smallConfig[22:]:                                                               "model.n_layers: found 0",
		"model: {preset: tiny}\nrun: {dir: x}\n":                                                                  "data.train: found",
		"model: {preset: tiny}\ndata: {train: [a]}\n":                                                             `run.dir: found ""`,
		"- a\n":                                    "c.yaml:1: found a list, expected sections",
		smallConfig + "data:\n  train: a.txt\n":    "the key is given twice",
		"data: {train: 5}\n":                       "c.yaml:1: data.train: found the integer 5, expected a list",
		"data: {train: [5]}\n":                     "c.yaml:1: data.train[0]: found the integer 5, expected text",
		"data: {shuffle: 1}\n":                     "c.yaml:1: data.shuffle: found the integer 1, expected true or false",
		"init: {seed: -1}\n":                       "c.yaml:1: init.seed: found the integer -1, expected an integer that fits uint64",
		"init: {from: testdata/none}\nmodel: {}\n": "c.yaml:1: init.from: ",
		"model: {n_kv_heads: 0, preset: tiny}\n" + smallConfig[22:]: "c.yaml:1: model.n_kv_heads: found 0",
	} {
		_, err := Parse("c.yaml", []byte(text), nil)
		assert.ErrorContains(t, err, want, text)
	}
}

func TestOverrideErrorsNameTheOverride(t *testing.T) {
	for override, want := range map[string]string{
		"train.stepz=5":     "--set train.stepz=5: train.stepz: unknown key",
		"train.steps=five":  `--set train.steps=five: train.steps: found text "five", expected an integer`,
		"train.steps":       "--set train.steps: expected section.key=value",
		"=5":                "--set =5: expected section.key=value",
		"train.steps.x=5":   "--set train.steps.x=5: train.steps: found a section, expected an integer",
		"data.train.x=5":    "--set data.train.x=5: data.train is a list, not a section",
		"train.steps=[":     "--set train.steps=[: ",
		"model.d_model=130": "--set model.d_model=130: model.d_model: found 130, expected a multiple of n_heads (4)",
	} {
		_, err := Parse("c.yaml", []byte(smallConfig), []string{override})
		assert.ErrorContains(t, err, want, override)
	}
}

// Keys of earlier versions are read. What an override says wins under either name.
func TestOlderKeysOfModels(t *testing.T) {
	sized := "model: {preset: tiny, d_ff: 64, rope_theta: 500, norm: {eps: 0.5}}\n" + smallConfig[22:]
	c, err := Parse("c.yaml", []byte(sized), nil)
	require.NoError(t, err)
	assert.Equal(t, []any{64, 500.0, 0.5, "pre"}, []any{c.Model.FFN.DFF, c.Model.Rope.Theta, c.Model.Norm.Eps, c.Model.Norm.Place})
	saved, err := ParseSaved("saved.yaml", []byte(sized))
	require.NoError(t, err)
	assert.Equal(t, 64, saved.Model.FFN.DFF)
	for _, override := range []string{"model.d_ff=32", "model.ffn.d_ff=32", "model.ffn={d_ff: 32}"} {
		for _, text := range []string{sized, strings.Replace(sized, "d_ff: 64", "ffn: {d_ff: 64}", 1), "model: {preset: tiny}\n" +
			smallConfig[22:]} {
			c, err := Parse("c.yaml", []byte(text), []string{override})
			require.NoError(t, err, override)
			assert.Equal(t, 32, c.Model.FFN.DFF, "%s\n%s", override, text)
		}
	}
	for text, want := range map[string]string{
		"d_ff: 64, ffn: {d_ff: 32}": "c.yaml:1: model.d_ff: the key is given twice, here and as model.ffn.d_ff",
		"\n  d_ff: 0":               "c.yaml:2: model.ffn.d_ff: found 0, expected an integer from 1",
		"d_ff: wide":                `c.yaml:1: model.ffn.d_ff: found text "wide", expected an integer`,
		"d_ff: 64, ffn: 5":          "model.ffn is the integer 5, not a section",
	} {
		_, err := Parse("c.yaml", []byte("model: {preset: tiny, "+text+"}\n"+smallConfig[22:]), nil)
		assert.ErrorContains(t, err, want, text)
	}
	k, ok := FindKey("model.d_ff")
	assert.True(t, ok)
	assert.Equal(t, "model.ffn.d_ff", k.Name)
	assert.NoError(t, check(t, []byte(sized)))
	assert.ErrorContains(t, check(t, []byte("model: {d_ff: wide}")), "/model/d_ff")
}

func TestWeightsToStartFromGiveTheModel(t *testing.T) {
	dir := t.TempDir()
	c, err := Parse("c", []byte(smallConfig), nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), c.Model.HuggingFace(), 0o666))
	text := "init: {from: " + dir + "}\ndata: {train: [a]}\nrun: {dir: r}\n"
	got, err := Parse("c", []byte(text), []string{"model.seq_len=64"})
	require.NoError(t, err)
	assert.Equal(t, 128, got.Model.DModel)
	assert.Equal(t, 64, got.Model.SeqLen, "the context may differ")
	_, err = Parse("c", []byte(text), []string{"model.n_layers=3"})
	assert.ErrorContains(t, err, "--set model.n_layers=3: model.n_layers: found 3, but the weights in "+dir+" have 4")
}

func TestLoadBoundsWhatItReads(t *testing.T) {
	dir := t.TempDir()
	var user *usererror.Error
	_, err := Load(dir, nil)
	assert.ErrorContains(t, err, "not a regular file")
	assert.ErrorAs(t, err, &user)
	_, err = Load(filepath.Join(dir, "none.yaml"), nil)
	assert.ErrorAs(t, err, &user)
	big := filepath.Join(dir, "big.yaml")
	require.NoError(t, os.WriteFile(big, make([]byte, 2<<20), 0o666))
	_, err = Load(big, nil)
	assert.ErrorContains(t, err, "expected at most 1048576")
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(smallConfig), "train.steps=5")
	f.Add([]byte("a: &x [*x]\n"), "a.b.c={d: [1]}")
	f.Fuzz(func(t *testing.T, text []byte, override string) {
		if c, err := Parse("f", text, []string{override}); err == nil {
			if _, err := Parse("g", c.YAML(), nil); err != nil {
				t.Fatalf("what was resolved is refused: %v\n%s", err, c.YAML())
			}
		}
	})
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "7": 7, "1.5 kB": 1500, "24GiB": 24 << 30, "2MB": 2e6} {
		n, err := ParseBytes(text)
		assert.NoError(t, err)
		assert.Equal(t, want, n, text)
	}
	for _, text := range []string{"0", "-1", "x", "1e3", "9999999999TiB", "5 gb"} {
		_, err := ParseBytes(text)
		assert.Error(t, err, text)
	}
}

func TestMistakesInConfigsOfHookModels(t *testing.T) {
	base := []string{"model={arch: hook, vocab_size: 256, seq_len: 8}", "data.train=[a.txt]", "run.dir=r"}
	build := "hooks=[{file: m.wasm, hook: build_model}]"
	for want, overrides := range map[string][]string{
		`hooks: found "none of build_model", expected one: model.arch is hook`: nil,
		`hooks: found "1 of build_model", expected none: model.arch is llama; for a model that a hook writes`: {build,
			"model={preset: tiny}"},
		`hooks: found "2 of build_model", expected at most one`:                        {"hooks=[{file: a, hook: build_model}, {file: b, hook: build_model}]"},
		"model.d_model: found 8, expected nothing: with arch: hook the module decides": {build, "model.d_model=8"},
		"model.ffn.d_ff: found 8, expected nothing":                                    {build, "model.d_ff=8"},
		"model.tie_embeddings: found true, expected nothing":                           {build, "model.tie_embeddings=true"},
		`model.preset: found "tiny", expected nothing`:                                 {build, "model.preset=tiny"},
		"model.vocab_size: found 0, expected an integer from 2":                        {build, "model.vocab_size=0"},
		"model.seq_len: found 0, expected an integer from 1":                           {build, "model.seq_len=0"},
		`model.arch: found "gpt", expected llama or hook`:                              {build, "model.arch=gpt"},
		`hooks[0].on_error: found "skip", expected nothing`:                            {"hooks=[{file: a, hook: build_model, on_error: skip}]"},
	} {
		_, err := Parse("c", nil, append(base[:3:3], overrides...))
		assert.ErrorContains(t, err, want)
	}
	c, err := Parse("c", nil, append(base[:3:3], build))
	require.NoError(t, err)
	again, err := Parse("kept.yaml", c.YAML(), nil)
	require.NoError(t, err)
	assert.Equal(t, string(c.YAML()), string(again.YAML()))
	assert.NotContains(t, string(c.YAML()), "d_model: 0")
}

func TestHooksAreWrittenOutAndReadBack(t *testing.T) {
	text := smallConfig + "hooks:\n- {file: a.wasm, hook: build_loss, seed: 3, config: {z: 1e-4, list: [1, {b: x, a: 1.5}], on: true, big: 9007199254740993}}\n"
	c, err := Parse("c.yaml", []byte(text), nil)
	require.NoError(t, err)
	assert.Equal(t, `{"big":9007199254740993,"list":[1,{"a":1.5,"b":"x"}],"on":true,"z":0.0001}`, string(c.Hooks[0].Config.JSON()))
	again, err := Parse("kept.yaml", c.YAML(), nil)
	require.NoError(t, err)
	assert.Equal(t, c.Hooks, again.Hooks)
	assert.Equal(t, string(c.YAML()), string(again.YAML()))
}

// Setting another precision than the file's f16 drops the file's loss scale, but not one that is set as well.
func TestPrecisionOverF16(t *testing.T) {
	file := smallConfig + "train: {precision: f16, loss_scale: {initial: 8, growth_every: 5}}\n"
	c, err := Parse("c.yaml", []byte(file), []string{"train.precision=bf16"})
	require.NoError(t, err)
	assert.Equal(t, "bf16", c.Train.Precision)
	assert.Zero(t, c.Train.LossScale)
	_, err = Parse("c.yaml", []byte(file), []string{"train.precision=bf16", "train.loss_scale.initial=4"})
	assert.ErrorContains(t, err, "only train.precision f16 has a loss scale")
}

// Settings that are valid and may not be meant have a note; a schedule has no batch beyond the most steps.
func TestNotes(t *testing.T) {
	file := "model: {preset: tiny, d_model: 64}\ndata: {train: [a.txt]}\nrun: {dir: r}\n"
	for set, want := range map[string][]string{
		"train.steps=50":       nil,
		"train.steps=0":        nil,
		"train.steps=49":       {"lr.warmup: 50 steps, but train.steps is 49: the learning rate rises to 0.98 of its value and no further"},
		"model={preset: tiny}": {"--set model={preset: tiny}: it replaces the whole section model, without its d_model"},
	} {
		c, err := Parse("f.yaml", []byte(file), []string{set})
		require.NoError(t, err)
		assert.Equal(t, want, c.Notes(), set)
	}
	_, err := Parse("f.yaml", []byte(file), []string{"train.steps=999999999"})
	assert.NoError(t, err)
	_, err = Parse("f.yaml", []byte(file), []string{"train.steps=1000000000"})
	assert.ErrorContains(t, err, "train.steps: found 1000000000, expected an integer from 0 to 999999999")
}

// An error names the key that is wrong: the one that the user has set, and the size that is too large.
func TestErrorsBlameTheKeyThatWasSet(t *testing.T) {
	file := "model: {preset: tiny}\ndata: {train: [a.txt]}\nrun: {dir: r}\n"
	for set, want := range map[string]string{
		"model.n_kv_heads=3": "--set model.n_kv_heads=3: model.n_kv_heads: found 3, expected one that fits model.n_heads: found 4, expected a multiple of n_kv_heads (3)",
		"model.n_heads=6":    "--set model.n_heads=6: model.n_heads: found 6, expected a multiple of n_kv_heads (4)",
		"model={preset: tiny, n_heads: 3, n_kv_heads: 3}": "model.n_heads: found 3, expected one that fits model.d_model: found 128, expected a multiple of n_heads (3)",
		"model.d_model=12":   "--set model.d_model=12: model.d_model: found 12, expected an even d_model/n_heads",
		"model.d_model=1028": "--set model.d_model=1028: model.d_model: found 1028, expected at most 1024 with n_heads (4)",
		"model={preset: tiny, d_model: 1048576, n_heads: 4096, n_kv_heads: 4096}": "model.d_model: found 1048576, expected parameters that 32 bits can index",
		"train.microbatches=3": "--set train.microbatches=3: train.microbatches: found 3, expected one that fits train.batch_size: found 16, expected a multiple of train.microbatches (3)",
	} {
		_, err := Parse("f.yaml", []byte(file), []string{set})
		assert.ErrorContains(t, err, want)
	}
}
