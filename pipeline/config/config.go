// Package config is a run's configuration: the sections and keys of its YAML, their defaults, and everything that can be
// checked without opening data or a device.
//
// Load reads a file, applies overrides of the form section.key=value, fills in defaults and validates. Errors name the
// file, the line and the key, what was found and what was expected. Packages below this one know neither files nor keys.
package config

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"go.yaml.in/yaml/v3"
)

// Config determines a run. Its YAML keys are the documented ones.
type Config struct {
	Model     Model     `yaml:"model"`
	Init      Init      `yaml:"init"`
	Data      Data      `yaml:"data"`
	Train     Train     `yaml:"train"`
	Optimizer Optimizer `yaml:"optimizer"`
	LR        LR        `yaml:"lr"`
	Pipeline  Pipeline  `yaml:"pipeline"`
	Hooks     []Hook    `yaml:"hooks"`
	Run       Run       `yaml:"run"`
}

// Init is the source of the initial weights.
type Init struct {
	Seed uint64 `yaml:"seed"` // of random weights; unused if From is set
	From string `yaml:"from"` // a folder with config.json and safetensors in Hugging Face's Llama layout
}

// Data is the text to train on. Files ending in .bin are llm.c shards. Files ending in .jsonl hold one {"text": …} a
// line. All others are text.
type Data struct {
	Train       []string `yaml:"train,flow"`
	Val         []string `yaml:"val,flow"`
	ValFraction float64  `yaml:"val_fraction"`           // share of the training tokens to hold out; unused if Val is set
	Aligned     []string `yaml:"aligned,flow,omitempty"` // safetensors files with one row per training token
	Field       string   `yaml:"field"`                  // the field of a jsonl object that holds its text
	Tokenizer   string   `yaml:"tokenizer"`              // "bytes", "gpt2" or the path of a tokenizer.json
	Shuffle     bool     `yaml:"shuffle"`
	Seed        uint64   `yaml:"seed"` // of the order of the windows
}

// Train is the training loop. Intervals are in steps; EvalEvery and SaveEvery of 0 evaluate and save at the end only.
type Train struct {
	Steps        int     `yaml:"steps"`
	BatchSize    int     `yaml:"batch_size"` // sequences per batch, over all microbatches
	Microbatches int     `yaml:"microbatches"`
	GradClip     float64 `yaml:"grad_clip"` // largest global norm of the gradient; 0 does not clip
	EvalEvery    int     `yaml:"eval_every"`
	EvalBatches  int     `yaml:"eval_batches"` // batches of batch_size per evaluation; 0: the whole validation split
	SaveEvery    int     `yaml:"save_every"`
	Keep         int     `yaml:"keep"`      // newest checkpoints to keep; 0 keeps all
	Precision    string  `yaml:"precision"` // of matrix products' operands and kept activations: f32, f16 or bf16
	// LossScale is set with f16 only.
	LossScale LossScale `yaml:"loss_scale,flow,omitempty"`
	Nonfinite string    `yaml:"nonfinite"` // on a loss or gradient that is not finite: Stop the run, or Skip the batch
}

// Values of train.nonfinite, and of on_error of hooks that may skip.
const (
	Stop = "stop"
	Skip = "skip"
)

// LossScale keeps gradients from vanishing in f16: stored gradients are of the loss times a power of two.
type LossScale struct {
	Initial     float64 `yaml:"initial"`      // a power of two
	GrowthEvery int     `yaml:"growth_every"` // batches in a row without overflow before the scale doubles
}

// LR is the schedule of the factor on all learning rates.
type LR struct {
	Schedule string  `yaml:"schedule"` // cosine, linear, wsd, constant
	Warmup   int     `yaml:"warmup"`   // steps of the linear rise to 1
	MinRatio float64 `yaml:"min_ratio"`
	Decay    int     `yaml:"decay"` // last steps, over which wsd falls; 0: a fifth of all
}

// Run is where a run writes its output.
type Run struct {
	Dir string `yaml:"dir"`
}

func defaults() Config {
	return Config{
		Init: Init{Seed: 1},
		Data: Data{ValFraction: 0.01, Field: "text", Tokenizer: "bytes", Shuffle: true, Seed: 1},
		Train: Train{Steps: 500, BatchSize: 16, Microbatches: 1, GradClip: 1, EvalEvery: 100, EvalBatches: 20, SaveEvery: 100,
			Precision: graph.F32.String(), Nonfinite: Stop},
		Optimizer: defaultOptimizer(),
		LR:        LR{Schedule: "cosine", Warmup: 50, MinRatio: 0.1},
		Pipeline: Pipeline{Schedule: ScheduleSync, Stages: 1, Chunks: 1, Replicas: 1, Correction: CorrectionNone,
			Recompute: RecomputeAuto, Isolate: IsolateNone, Restarts: 3, Watchdog: "5m"},
	}
}

// Load reads a config file (none if path is empty) and calls Parse. All its errors are marked by usererror.
func Load(path string, overrides []string) (Config, error) {
	var text []byte
	file := "config"
	if path != "" {
		var err error
		if text, err = strictyaml.ReadSmall(path); err != nil {
			return Config{}, usererror.New(err)
		}
		file = path
	}
	c, err := Parse(file, text, overrides)
	return c, usererror.New(err)
}

// Parse applies overrides of the form section.key=value to a text and calls Resolve. Errors name the text as file.
func Parse(file string, text []byte, overrides []string) (Config, error) {
	d, err := strictyaml.Parse(file, text)
	if err != nil {
		return Config{}, err
	}
	for _, o := range overrides {
		if err := d.Override(o); err != nil {
			return Config{}, err
		}
	}
	return Resolve(d)
}

// Resolve decodes a document over the defaults, fills in the keys that depend on others, and validates the result.
func Resolve(d *strictyaml.Document) (Config, error) {
	c := defaults()
	if err := d.Decode(&c); err != nil {
		return Config{}, err
	}
	if err := c.complete(d); err != nil {
		return Config{}, err
	}
	if err := c.validate(); err != nil {
		if e, ok := err.(*fielderror.Error); ok {
			return Config{}, fmt.Errorf("%s: %w", d.At(e.Field), err)
		}
		return Config{}, err
	}
	return c, nil
}

// ParseSaved reads the config that a run wrote with YAML. It does not validate: files that the run started from may be
// gone. Keys that did not exist when the config was written have their defaults.
func ParseSaved(file string, text []byte) (Config, error) {
	d, err := strictyaml.Parse(file, text)
	if err != nil {
		return Config{}, err
	}
	c := defaults()
	return c, d.Decode(&c)
}

// YAML is the config with every default written out, as kept in the run folder.
func (c Config) YAML() []byte {
	out, err := yaml.Marshal(c)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return out
}

// Rows is the number of sequences in a microbatch.
func (c Config) Rows() int { return c.Train.BatchSize / c.Train.Microbatches }

// MicrobatchesPerReplica is the number of microbatches of each batch that one replica takes.
func (c Config) MicrobatchesPerReplica() int { return c.Train.Microbatches / c.Pipeline.Replicas }

// BatchTokens is the number of tokens in a batch.
func (c Config) BatchTokens() int64 { return int64(c.Train.BatchSize) * int64(c.Model.SeqLen) }

// complete fills in the keys whose defaults depend on other keys.
func (c *Config) complete(d *strictyaml.Document) error {
	if err := c.completeModel(d); err != nil {
		return err
	}
	if err := c.completeVocabulary(d); err != nil {
		return err
	}
	c.Pipeline.complete(d)
	c.Optimizer.complete(d)
	return c.Train.complete(d)
}

// Invalid is the error of a key that holds an unusable value. Its type is *fielderror.Error.
func Invalid(key string, found any, expected string, args ...any) error {
	return fielderror.New(key, found, expected, args...)
}

func (c Config) validate() error {
	if err := c.Model.Validate(); err != nil {
		return fielderror.In("model", err)
	}
	for _, check := range []func() error{c.validateData, c.validateLoop, c.validateOptimizer, c.validateLR, c.validatePipeline, c.validateHooks} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.Run.Dir == "" {
		return Invalid("run.dir", c.Run.Dir, "the folder to keep the run in")
	}
	return nil
}

func (c Config) validateData() error {
	switch {
	case len(c.Data.Train) == 0:
		return Invalid("data.train", c.Data.Train, "at least one file to learn from, as in data: {train: [a.txt]}")
	case slices.Contains(c.Data.Train, "") || slices.Contains(c.Data.Val, ""):
		return Invalid("data.train", "", "names of files")
	case slices.Contains(c.Data.Aligned, ""):
		return Invalid("data.aligned", "", "names of safetensors files")
	case c.Data.ValFraction < 0 || c.Data.ValFraction > 0.5:
		return Invalid("data.val_fraction", c.Data.ValFraction, "a number from 0 to 0.5")
	case c.Data.Field == "":
		return Invalid("data.field", c.Data.Field, "the name of a field")
	case c.Data.Tokenizer == "":
		return Invalid("data.tokenizer", c.Data.Tokenizer, "bytes, gpt2, or the path of a tokenizer.json")
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
			return Invalid(n.key, n.value, "an integer from %d to %d", n.from, n.max)
		}
	}
	switch {
	case t.BatchSize%t.Microbatches != 0:
		return Invalid("train.batch_size", t.BatchSize, "a multiple of train.microbatches (%d)", t.Microbatches)
	case t.GradClip < 0:
		return Invalid("train.grad_clip", t.GradClip, "a number of at least 0 (0 does not clip)")
	case t.Nonfinite != Stop && t.Nonfinite != Skip:
		return Invalid("train.nonfinite", t.Nonfinite, "%s or %s", Stop, Skip)
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
		return Invalid("lr.warmup", l.Warmup, "a number of steps, at least 0")
	case l.MinRatio < 0 || l.MinRatio > 1 || math.IsNaN(l.MinRatio):
		return Invalid("lr.min_ratio", l.MinRatio, "a number from 0 to 1")
	case l.Decay < 0:
		return Invalid("lr.decay", l.Decay, "a number of steps, at least 0")
	}
	return nil
}

func oneOf(key, found string, names ...string) error {
	if !slices.Contains(names, found) {
		return Invalid(key, found, "one of %s", strings.Join(names, ", "))
	}
	return nil
}
