// Package train is the root of a run: its config, the loop that carries it out on a device, and evaluation and sampling of
// what came out.
package train

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"go.yaml.in/yaml/v3"
)

// Config is everything that determines a run. Its YAML keys are the documented ones.
type Config struct {
	Model     ModelConfig     `yaml:"model"`
	Init      InitConfig      `yaml:"init"`
	Data      DataConfig      `yaml:"data"`
	Train     LoopConfig      `yaml:"train"`
	Optimizer OptimizerConfig `yaml:"optimizer"`
	LR        LRConfig        `yaml:"lr"`
	Pipeline  PipelineConfig  `yaml:"pipeline"`
	Hooks     []HookConfig    `yaml:"hooks"`
	Run       RunConfig       `yaml:"run"`
}

// ModelConfig is a model by name, or by its sizes, or by name with some sizes changed; or, with the arch hook, one that a hook writes.
type ModelConfig struct {
	Preset       string `yaml:"preset,omitempty"`
	model.Config `yaml:",inline"`
}

// InitConfig says where initial weights come from.
type InitConfig struct {
	Seed uint64 `yaml:"seed"` // of the weights, when From is empty
	From string `yaml:"from"` // a folder with config.json and safetensors in Hugging Face's Llama layout
}

// DataConfig says what text is learned. Files ending in .bin are llm.c shards, in .jsonl one {"text": …} a line; all
// others are text.
type DataConfig struct {
	Train       []string `yaml:"train,flow"`
	Val         []string `yaml:"val,flow"`
	ValFraction float64  `yaml:"val_fraction"`           // of the training tokens, held out when Val is empty
	Aligned     []string `yaml:"aligned,flow,omitempty"` // safetensors with a row for each training token
	Field       string   `yaml:"field"`                  // of a jsonl object: where its text is
	Tokenizer   string   `yaml:"tokenizer"`              // "bytes", "gpt2" or the path of a tokenizer.json
	Shuffle     bool     `yaml:"shuffle"`
	Seed        uint64   `yaml:"seed"` // of the order of the windows
}

// LoopConfig is the course of training. Counts of steps; 0 in EvalEvery and SaveEvery means never on the way.
type LoopConfig struct {
	Steps        int     `yaml:"steps"`
	BatchSize    int     `yaml:"batch_size"` // sequences a batch, over all microbatches
	Microbatches int     `yaml:"microbatches"`
	GradClip     float64 `yaml:"grad_clip"` // largest global norm of the gradient; 0 does not clip
	EvalEvery    int     `yaml:"eval_every"`
	EvalBatches  int     `yaml:"eval_batches"` // batches of batch_size an evaluation looks at; 0: the whole held-out split
	SaveEvery    int     `yaml:"save_every"`
	Keep         int     `yaml:"keep"`      // checkpoints kept, the newest ones; 0 keeps all
	Precision    string  `yaml:"precision"` // of matrix products' operands and kept activations: f32, f16 or bf16
	// LossScale is there with f16 only.
	LossScale LossScaleConfig `yaml:"loss_scale,flow,omitempty"`
	Nonfinite string          `yaml:"nonfinite"` // what a loss or gradient that is not finite does: stop the run, or skip the batch
}

// LRConfig is the factor on all learning rates over the steps.
type LRConfig struct {
	Schedule string  `yaml:"schedule"` // cosine, linear, wsd, constant
	Warmup   int     `yaml:"warmup"`   // steps over which it rises linearly to 1
	MinRatio float64 `yaml:"min_ratio"`
	Decay    int     `yaml:"decay"` // the last steps over which wsd falls; 0: a fifth of all
}

// PipelineConfig is how the model is spread over devices, and in which order they work.
type PipelineConfig struct {
	Schedule      string   `yaml:"schedule"`     // sync (1f1b), gpipe, 1f1b, interleaved, zb-h1, 2bw, or the path of a schedule file
	Stages        int      `yaml:"stages"`       // p
	Chunks        int      `yaml:"chunks"`       // parts of the model a stage, of interleaved
	Cut           []int    `yaml:"cut,flow"`     // the first unit (0 embedding, then layers, then head) of each part but the first; empty: automatic
	Devices       []string `yaml:"devices,flow"` // a line each, in turn; empty: the default device for all
	Replicas      int      `yaml:"replicas"`     // pipelines that share each batch's microbatches
	Delay         int      `yaml:"delay"`        // of the update, in steps: 2bw has 1; with one stage 1 is what 2bw computes on any number
	Correction    string   `yaml:"correction"`   // of the delay: none, error_feedback, weight_prediction, dc_asgd
	ErrorFeedback bool     `yaml:"error_feedback"`
	Memory        string   `yaml:"memory"`    // what a device may take, as in 24GiB; empty: what it tells, which most GPUs do not
	Recompute     string   `yaml:"recompute"` // activations in the backward pass: auto (where memory demands it), always, never
	Isolate       string   `yaml:"isolate"`   // process: each line's device is in a process of its own, which the run starts again when it dies; none
	Restarts      int      `yaml:"restarts"`  // of devices in processes, without a checkpoint in between; one more fault stops the run
	Watchdog      string   `yaml:"watchdog"`  // as in 90s or 5m: the longest that a device in a process may take for a stage's pass of one microbatch
}

// RunConfig is where a run leaves what it makes.
type RunConfig struct {
	Dir string `yaml:"dir"`
}

func defaults() Config {
	return Config{
		Init: InitConfig{Seed: 1},
		Data: DataConfig{ValFraction: 0.01, Field: "text", Tokenizer: "bytes", Shuffle: true, Seed: 1},
		Train: LoopConfig{Steps: 500, BatchSize: 16, Microbatches: 1, GradClip: 1, EvalEvery: 100, EvalBatches: 20, SaveEvery: 100, Precision: "f32",
			Nonfinite: halt},
		Optimizer: defaultOptimizer(),
		LR:        LRConfig{Schedule: "cosine", Warmup: 50, MinRatio: 0.1},
		Pipeline: PipelineConfig{Schedule: syncSchedule, Stages: 1, Chunks: 1, Replicas: 1, Correction: noCorrection, Recompute: automatic,
			Isolate: nowhere, Restarts: 3, Watchdog: "5m"},
	}
}

// LoadConfig reads a config file (none when path is empty), applies overrides of the form section.key=value, fills in
// defaults and checks everything that can be checked without opening data or device. All errors are the user's.
func LoadConfig(path string, overrides []string) (Config, error) {
	var text []byte
	file := "config"
	if path != "" {
		var err error
		if text, err = strictyaml.ReadSmall(path); err != nil {
			return Config{}, usererror.New(err)
		}
		file = path
	}
	c, err := ParseConfig(file, text, overrides)
	return c, usererror.New(err)
}

// ParseConfig is LoadConfig on a text; file is how errors name it.
func ParseConfig(file string, text []byte, overrides []string) (Config, error) {
	d, err := strictyaml.Parse(file, text)
	if err != nil {
		return Config{}, err
	}
	for _, o := range overrides {
		if err := d.Override(o); err != nil {
			return Config{}, err
		}
	}
	return ResolveConfig(d)
}

// ResolveConfig is ParseConfig on a document with its overrides.
func ResolveConfig(d *strictyaml.Document) (Config, error) {
	c := defaults()
	if err := d.Decode(&c); err != nil {
		return Config{}, err
	}
	if err := c.complete(d); err != nil {
		return Config{}, err
	}
	if err := c.validate(); err != nil {
		if e, ok := err.(*model.KeyError); ok {
			return Config{}, fmt.Errorf("%s: %w", d.At(e.Key), err)
		}
		return Config{}, err
	}
	return c, nil
}

// complete fills in what depends on other keys: the model's base, and what goes with the schedule and the optimizer.
func (c *Config) complete(d *strictyaml.Document) error {
	if c.Model.written() {
		if err := c.Model.completeWritten(d); err != nil {
			return err
		}
		c.Pipeline.complete(d)
		c.Optimizer.complete(d)
		return c.Train.complete(d)
	}
	base := model.Defaults()
	switch {
	case c.Model.Preset != "":
		p, err := model.Preset(c.Model.Preset)
		if err != nil {
			return fmt.Errorf("%s: model.preset: %w", d.At("model.preset"), err)
		}
		base = p
	case c.Init.From != "":
		p, err := ReadModelConfig(c.Init.From)
		if err != nil {
			return fmt.Errorf("%s: init.from: %w", d.At("init.from"), err)
		}
		base = p
	}
	c.Model.Config = base
	if base == model.Defaults() && !d.Filled("model") {
		return fmt.Errorf("%s: model: not given, expected {preset: one of %s} or sizes: vocab_size, d_model, n_layers, n_heads, d_ff and seq_len",
			d.At("model"), strings.Join(model.Presets(), ", "))
	}
	if err := d.DecodeSection("model", &c.Model); err != nil {
		return err
	}
	if c.Model.NKVHeads == 0 && !d.Given("model.n_kv_heads") {
		c.Model.NKVHeads = c.Model.NHeads
	}
	if c.Init.From != "" {
		if err := c.agreesWith(d); err != nil {
			return err
		}
	}
	c.Pipeline.complete(d)
	c.Optimizer.complete(d)
	return c.Train.complete(d)
}

// agreesWith refuses a model section that contradicts the weights it starts from; the context may differ.
func (c *Config) agreesWith(d *strictyaml.Document) error {
	found, err := ReadModelConfig(c.Init.From)
	if err != nil {
		return fmt.Errorf("%s: init.from: %w", d.At("init.from"), err)
	}
	found.SeqLen = c.Model.SeqLen
	if key, mine, theirs := c.Model.Diff(found); key != "" {
		return fmt.Errorf("%s: model.%s: found %s, but the weights in %s have %s", d.At("model."+key), key, model.ValueText(mine), c.Init.From, model.ValueText(theirs))
	}
	return nil
}

// ReadModelConfig reads config.json in a folder, that of a Llama.
func ReadModelConfig(dir string) (model.Config, error) {
	path := filepath.Join(dir, "config.json")
	kept, err := readKept(dir)
	if err != nil {
		return model.Config{}, err
	}
	if kept != nil {
		return model.Config{}, fmt.Errorf("%s: a hook wrote this model, expected a Llama; to train it: model: {arch: hook, …} and its module as the hook %s", path, hook.BuildModel)
	}
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return model.Config{}, err
	}
	c, err := model.FromHuggingFace(text)
	if err != nil {
		return model.Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// YAML is the config with every default written out, as kept in the run folder.
func (c Config) YAML() []byte {
	out, err := yaml.Marshal(c)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return out
}

func bad(key string, found any, expected string, args ...any) error {
	if s, ok := found.(string); ok {
		found = fmt.Sprintf("%q", s)
	}
	return &model.KeyError{Key: key, Found: model.ValueText(found), Expected: fmt.Sprintf(expected, args...)}
}

func (c Config) validate() error {
	if err := c.Model.Validate(); err != nil {
		if e, ok := err.(*model.KeyError); ok {
			return &model.KeyError{Key: "model." + e.Key, Found: e.Found, Expected: e.Expected}
		}
		return err
	}
	for _, check := range []func() error{c.validateData, c.validateLoop, c.validateOptimizer, c.validateLR, c.validatePipeline, c.validateHooks} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.Run.Dir == "" {
		return bad("run.dir", c.Run.Dir, "the folder to keep the run in")
	}
	return nil
}

func (c Config) validateData() error {
	switch {
	case len(c.Data.Train) == 0:
		return bad("data.train", c.Data.Train, "at least one file to learn from, as in data: {train: [a.txt]}")
	case slices.Contains(c.Data.Train, "") || slices.Contains(c.Data.Val, ""):
		return bad("data.train", "", "names of files")
	case slices.Contains(c.Data.Aligned, ""):
		return bad("data.aligned", "", "names of safetensors files")
	case c.Data.ValFraction < 0 || c.Data.ValFraction > 0.5:
		return bad("data.val_fraction", c.Data.ValFraction, "a number from 0 to 0.5")
	case c.Data.Field == "":
		return bad("data.field", c.Data.Field, "the name of a field")
	case c.Data.Tokenizer == "":
		return bad("data.tokenizer", c.Data.Tokenizer, "bytes, gpt2, or the path of a tokenizer.json")
	}
	return nil
}

func (c Config) validateLoop() error {
	t := c.Train
	for _, n := range []struct {
		key              string
		value, from, max int
	}{
		{"train.steps", t.Steps, 0, 1 << 30}, {"train.batch_size", t.BatchSize, 1, 1 << 20},
		{"train.microbatches", t.Microbatches, 1, 1 << 20}, {"train.eval_every", t.EvalEvery, 0, 1 << 30},
		{"train.eval_batches", t.EvalBatches, 0, 1 << 30}, {"train.save_every", t.SaveEvery, 0, 1 << 30},
		{"train.keep", t.Keep, 0, 1 << 30},
	} {
		if n.value < n.from || n.value > n.max {
			return bad(n.key, n.value, "an integer from %d to %d", n.from, n.max)
		}
	}
	switch {
	case t.BatchSize%t.Microbatches != 0:
		return bad("train.batch_size", t.BatchSize, "a multiple of train.microbatches (%d)", t.Microbatches)
	case t.GradClip < 0:
		return bad("train.grad_clip", t.GradClip, "a number of at least 0 (0 does not clip)")
	case t.Nonfinite != halt && t.Nonfinite != skip:
		return bad("train.nonfinite", t.Nonfinite, "%s or %s", halt, skip)
	}
	return t.validatePrecision()
}

func (c Config) validateLR() error {
	l := c.LR
	if err := oneOf("lr.schedule", l.Schedule, "cosine", "linear", "wsd", "constant"); err != nil {
		return err
	}
	switch {
	case l.Warmup < 0:
		return bad("lr.warmup", l.Warmup, "a number of steps, at least 0")
	case l.MinRatio < 0 || l.MinRatio > 1 || math.IsNaN(l.MinRatio):
		return bad("lr.min_ratio", l.MinRatio, "a number from 0 to 1")
	case l.Decay < 0:
		return bad("lr.decay", l.Decay, "a number of steps, at least 0")
	}
	return nil
}

func oneOf(key, found string, names ...string) error {
	if !slices.Contains(names, found) {
		return bad(key, found, "one of %s", strings.Join(names, ", "))
	}
	return nil
}
