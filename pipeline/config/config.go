// Package config is a run's configuration: the sections and keys of its YAML, their defaults, and everything that can
// be checked without opening data or a device.
//
// Load reads a file, applies overrides of the form section.key=value, fills in defaults and validates. Errors name the
// file, the line and the key, what was found and what was expected. Packages below this one know neither files nor
// keys.
package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/suggest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"go.yaml.in/yaml/v3"
)

// Config determines a run. Its YAML keys are the documented ones.
type Config struct {
	Model     Model     `yaml:"model" help:"Shape of the model."`
	Init      Init      `yaml:"init" help:"Initial weights."`
	Data      Data      `yaml:"data" help:"Text to train on."`
	Train     Train     `yaml:"train" help:"Training loop."`
	Optimizer Optimizer `yaml:"optimizer" help:"Optimizer."`
	LR        LR        `yaml:"lr" help:"Schedule of the factor on all learning rates."`
	Pipeline  Pipeline  `yaml:"pipeline" help:"Pipeline stages, devices and their schedule."`
	Hooks     []Hook    `yaml:"hooks" help:"WebAssembly modules that customize the run: see docs/HOOKS.md."`
	Run       Run       `yaml:"run" help:"Output."`

	replaced []string // what overrides of whole sections have dropped
	paths    paths
}

// Init is the source of the initial weights.
type Init struct {
	Seed uint64 `yaml:"seed" help:"Seed of random initial weights. Unused with init.from."`
	From string `yaml:"from" help:"Folder with weights to start from: config.json and safetensors in Hugging Face's layout, a GGUF file, or a model of the Hub, hf:org/name@revision. Its tokenizer is the default of data.tokenizer."`
	// ExtendVocab is omitted where it is false, as in runs from before it existed.
	ExtendVocab bool `yaml:"extend_vocab,omitempty" help:"Let the model have more tokens than init.from: those of data.tokenizer, or model.vocab_size. A new row of the embedding, and of the head, is the mean of the others."`
}

// Data is the text to train on. Package data defines the formats of files, by the ends of their names.
type Data struct {
	Train       []string `yaml:"train,flow" help:"Files to train on, globs, folders that datasets saved, or data sets of the Hub, hf:datasets/org/name/path@revision:split: .jsonl and .json have objects with the text in a field, .parquet and .arrow a column, .bin are llm.c shards, all others are text; .gz and .zst are decompressed."`
	Mix         []Source `yaml:"mix,omitempty" help:"Sources to draw training windows from, instead of data.train."`
	Val         []string `yaml:"val,flow" help:"Files of the validation split."`
	ValFraction float64  `yaml:"val_fraction" help:"Share of the training tokens to hold out for validation. Unused with data.val."`
	Aligned     []string `yaml:"aligned,flow,omitempty" help:"Safetensors files with one row for each training token, for hooks."`
	Field       string   `yaml:"field" help:"Field of JSON objects, or column of .parquet and .arrow, that has the text; names of nested columns are joined by dots."`
	Tokenizer   string   `yaml:"tokenizer" help:"bytes, gpt2, a tokenizer.json or tokenizer.model, its folder, or a model of the Hub, hf:org/name."`
	Shuffle     bool     `yaml:"shuffle" help:"Draw training windows in random order."`
	Seed        uint64   `yaml:"seed" help:"Seed of the order of the windows."`
	Stream      Choice   `yaml:"stream" help:"Begin to train when the first file is read: true, false, or auto, for data sets of the Hub that are several Parquet files. The first pass takes the windows of one file after the other."`

	Pack         string    `yaml:"pack" help:"How documents are laid into training sequences: concat joins them and cuts windows; best_fit cuts no document that fits into a sequence."`
	DocumentMask bool      `yaml:"document_mask" help:"Let tokens attend within their document only, in training and validation."`
	SpecialText  string    `yaml:"special_text" help:"What special tokens are that are spelled out in a text: token, or text as any other."`
	BOS          Choice    `yaml:"bos" help:"Whether each document begins with the tokenizer's token for it: true, false, or auto, as the tokenizer itself does."`
	Separator    Separator `yaml:"separator" help:"Token that ends a document, for data.pack and data.document_mask; auto: each of the tokenizer's ends of text."`
}

// Source is one of the sources of data.mix.
type Source struct {
	Train  []string `yaml:"train,flow" help:"Files of the source, as in data.train."`
	Weight float64  `yaml:"weight,omitempty" help:"Share of the windows, in proportion to the weights of all sources. All have a weight, or all have epochs."`
	Epochs float64  `yaml:"epochs,omitempty" help:"Passes over the source for one pass over the mix, instead of a weight."`
	Field  string   `yaml:"field,omitempty" help:"Field or column that has the text. Default: data.field."`
}

// Train is the training loop. Intervals are in steps; EvalEvery and SaveEvery of 0 evaluate and save at the end only.
type Train struct {
	Steps         int           `yaml:"steps" help:"Number of steps."`
	BatchSize     int           `yaml:"batch_size" help:"Sequences in a batch, over all microbatches."`
	BatchSchedule BatchSchedule `yaml:"batch_schedule,omitempty" help:"Sizes of batches by the step from which on they are used, as in {0: 64, 1000: 128}, instead of one train.batch_size. Microbatches keep their size."`
	Microbatches  int           `yaml:"microbatches" help:"Microbatches in a batch. A pipeline needs at least one for each stage."`
	GradClip      float64       `yaml:"grad_clip" help:"Largest global norm of the gradient; 0 does not clip."`
	EvalEvery     int           `yaml:"eval_every" help:"Steps between evaluations; 0 evaluates at the end only."`
	EvalBatches   int           `yaml:"eval_batches" help:"Batches in an evaluation; 0 is the whole validation split."`
	EvalTasks     []string      `yaml:"eval_tasks,flow,omitempty" help:"Files of multiple-choice questions for each evaluation, as gpupipe eval --task reads them."`
	EvalQuestions int           `yaml:"eval_questions,omitempty" help:"Questions of each file that an evaluation asks, the first ones; 0 asks all."`
	SaveEvery     int           `yaml:"save_every" help:"Steps between checkpoints; 0 saves at the end only."`
	Keep          int           `yaml:"keep" help:"Newest checkpoints to keep; 0 keeps all."`
	KeepBest      bool          `yaml:"keep_best" help:"Save a checkpoint after each evaluation with the lowest validation loss so far, and keep it besides the newest ones."`
	Precision     string        `yaml:"precision" help:"Number format of the operands of matrix products and of the activations kept for the backward pass."`
	LossScale     LossScale     `yaml:"loss_scale,flow,omitempty" help:"Loss scaling of f16, which keeps gradients from vanishing."`
	Nonfinite     string        `yaml:"nonfinite" help:"What to do if a loss or gradient is not finite: stop the run, or skip the batch."`
}

// Values of train.nonfinite, and of on_error of hooks that may skip.
const (
	Stop = "stop"
	Skip = "skip"
)

// LossScale keeps gradients from vanishing in f16: stored gradients are of the loss times a power of two.
type LossScale struct {
	Initial     float64 `yaml:"initial" help:"First factor on the loss, a power of two." default:"65536 with f16"`
	GrowthEvery int     `yaml:"growth_every" help:"Batches without overflow after which the factor doubles." default:"2000 with f16"`
}

// LR is the schedule of the factor on all learning rates.
type LR struct {
	Schedule string  `yaml:"schedule" help:"Shape of the schedule after the warm-up."`
	Warmup   int     `yaml:"warmup" help:"Steps of the linear rise to 1."`
	MinRatio float64 `yaml:"min_ratio" help:"Factor at the end."`
	Decay    int     `yaml:"decay" help:"Last steps, over which wsd falls; 0 is a fifth of all."`
}

// Run is where a run writes its output.
type Run struct {
	Dir string `yaml:"dir" help:"Folder for the output of the run."`
	// StartedIn is omitted in configs that users write.
	StartedIn string `yaml:"started_in,omitempty" help:"Folder that relative paths of this config begin at, if it exists; a file that is not there is looked for in the working directory, too. A run writes it into its config.yaml." default:"the working directory"`
}

func defaults() Config {
	return Config{
		Init: Init{Seed: 1},
		Data: Data{ValFraction: 0.01, Field: "text", Tokenizer: "bytes", Shuffle: true, Seed: 1, Stream: Auto, Pack: PackConcat,
			SpecialText: tokenizer.SpecialAsToken, BOS: No, Separator: SeparatorAuto},
		Train: Train{Steps: 500, BatchSize: 16, Microbatches: 1, GradClip: 1, EvalEvery: 100, EvalBatches: 20, SaveEvery: 100,
			Precision: graph.F32.String(), Nonfinite: Stop},
		Optimizer: defaultOptimizer(),
		LR:        LR{Schedule: optim.ScheduleNames()[0], Warmup: 50, MinRatio: 0.1},
		Pipeline: Pipeline{Schedule: ScheduleSync, Stages: 1, Chunks: 1, Replicas: 1, Outer: defaultOuter(),
			Correction:        optim.CorrectionNone,
			StaleMicrobatches: StaleAuto, Depth: DepthAuto, Recompute: RecomputeAuto, Wire: Wire{wire.F32.String(), wire.F32.String()},
			Processes: Processes{Isolate: IsolateNone, Restarts: 3, Watchdog: "5m"}},
	}
}

// Load reads a config file (none if path is empty) and calls Parse. All its errors are marked by usererror.
func Load(path string, overrides []string) (Config, error) { return LoadKept(path, overrides, nil) }

// LoadKept is Load for a run that goes on: names of the Hub mean the commits that the run has recorded, but for names
// of overrides with a revision.
func LoadKept(path string, overrides []string, commits hub.Commits) (Config, error) {
	d, note, err := open(path, overrides, commits)
	if err != nil {
		return Config{}, usererror.New(err)
	}
	c, err := Resolve(d)
	if note != "" {
		c.replaced = append(c.replaced, note)
	}
	return c, usererror.New(err)
}

// RunDir is the run.dir of the config that Load would read. Other keys may be wrong.
func RunDir(path string, overrides []string) (string, error) {
	d, _, err := open(path, overrides, nil)
	if err != nil {
		return "", usererror.New(err)
	}
	var c Config
	if err = d.DecodeSection("run", &c.Run); err == nil {
		err = c.usePaths(d, "", true)
	}
	return c.Run.Dir, usererror.New(err)
}

// open reads a config file (none if path is empty), and applies overrides and commits to it as LoadKept does. The note
// is that of withoutStart.
func open(path string, overrides []string, commits hub.Commits) (d *strictyaml.Document, note string, err error) {
	file, text := "config", []byte(nil)
	if path != "" {
		if text, err = strictyaml.ReadSmall(path); err != nil {
			return nil, "", err
		}
		file = path
	}
	if d, err = strictyaml.Parse(file, text); err != nil {
		return nil, "", err
	}
	if path != "" {
		if note, err = withoutStart(d, path, text); err != nil {
			return nil, "", err
		}
	}
	return d, note, applyKept(d, overrides, commits)
}

// applyKept applies overrides, and gives names of the Hub their commits.
func applyKept(d *strictyaml.Document, overrides []string, commits hub.Commits) error {
	d.Change(commits.Keep)
	err := apply(d, overrides)
	d.Change(commits.KeepNewest)
	return err
}

// Parse applies overrides of the form section.key=value to a text and calls Resolve. Errors name the text as file.
func Parse(file string, text []byte, overrides []string) (Config, error) {
	d, err := strictyaml.Parse(file, text)
	if err == nil {
		err = apply(d, overrides)
	}
	if err != nil {
		return Config{}, err
	}
	return Resolve(d)
}

func apply(d *strictyaml.Document, overrides []string) error {
	for _, o := range overrides {
		if err := d.Override(o); err != nil {
			return err
		}
	}
	return nil
}

// Resolve decodes a document over the defaults, fills in the keys that depend on others, and validates the result.
func Resolve(d *strictyaml.Document) (Config, error) { return ResolveFrom(d, "") }

// ResolveFrom resolves a document as Resolve does. Its relative paths begin at the folder start; "" is the working
// directory. Relative paths of the command line begin at the working directory.
func ResolveFrom(d *strictyaml.Document, start string) (Config, error) {
	if err := useCurrentKeys(d); err != nil {
		return Config{}, err
	}
	c := defaults()
	c.replaced = d.Replaced()
	if err := d.Decode(&c); err != nil {
		return Config{}, err
	}
	if err := c.usePaths(d, start, false); err != nil {
		return Config{}, err
	}
	if err := c.complete(d); err != nil {
		return Config{}, err
	}
	if err := c.validate(); err != nil {
		if e, ok := c.blame(d, err).(*fielderror.Error); ok {
			err = e
			return Config{}, fmt.Errorf("%s: %w", d.At(e.Field), err)
		}
		return Config{}, err
	}
	return c, nil
}

// SavedFile is the name, in a checkpoint, of the config of its run.
const SavedFile = "train.yaml"

// ParseSaved reads the config that a run wrote with YAML. It does not validate: files that the run started from may be
// gone. Keys that did not exist when the config was written have their defaults.
func ParseSaved(file string, text []byte) (Config, error) {
	d, err := strictyaml.Parse(file, text)
	if err != nil {
		return Config{}, err
	}
	if err := useCurrentKeys(d); err != nil {
		return Config{}, err
	}
	c := defaults()
	c.Model.Config = model.Defaults()
	if err := d.Decode(&c); err != nil {
		return c, err
	}
	c.Pipeline.completeSavedStaleness(d)
	err = c.usePaths(d, "", true)
	c.explainMissing(d, "FOLDER")
	return c, err
}

// YAML is the config with every default written out, and paths as they were written.
func (c Config) YAML() []byte {
	out, err := yaml.Marshal(c.At(0).asWritten())
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return out
}

// Notes are sentences about settings that are valid, but may not be meant.
func (c Config) Notes() []string {
	notes := slices.Clone(c.replaced)
	steps := c.Train.Steps
	if w := c.LR.Warmup; steps > 0 && w > steps {
		notes = append(notes, fmt.Sprintf("lr.warmup: %d steps, but train.steps is %d: the learning rate rises to %.2g of its value and no further", w, steps, float64(steps)/float64(w)))
	}
	return notes
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
	if err := c.Train.completeBatches(d); err != nil {
		return err
	}
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
	for _, check := range []func() error{c.validateData, c.validateDocuments, c.validateLoop, c.validateLR, c.validatePipeline,
		c.validateBatches, c.validateHooks} {
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
	case len(c.Data.Train) == 0 && len(c.Data.Mix) == 0:
		return Invalid("data.train", c.Data.Train, "at least one file to learn from, as in data: {train: [a.txt]}")
	case len(c.Data.Train) > 0 && len(c.Data.Mix) > 0:
		return Invalid("data.mix", len(c.Data.Mix), "no sources beside data.train")
	case slices.Contains(c.Data.Train, "") || slices.Contains(c.Data.Val, ""):
		return Invalid("data.train", "", "names of files")
	case slices.Contains(c.Data.Aligned, ""):
		return Invalid("data.aligned", "", "names of safetensors files")
	case c.Data.ValFraction < 0 || c.Data.ValFraction > 0.5:
		return Invalid("data.val_fraction", c.Data.ValFraction, "a number from 0 to 0.5")
	case c.Data.Field == "":
		return Invalid("data.field", c.Data.Field, "the name of a field")
	case len(c.Data.Mix) > 0 && len(c.Data.Aligned) > 0:
		return Invalid("data.aligned", c.Data.Aligned, "none with data.mix")
	case c.Data.Stream == Yes && !c.streamable():
		return Invalid("data.stream", true, "auto or false with data.mix, data.aligned, or hooks that change documents or batches")
	case c.Data.Tokenizer == "":
		return Invalid("data.tokenizer", c.Data.Tokenizer, "bytes, gpt2, or the path of a tokenizer.json")
	}
	return nil
}

// streamable reports whether the text may be read while the run trains.
func (c Config) streamable() bool {
	return len(c.Data.Mix) == 0 && len(c.Data.Aligned) == 0 && !slices.ContainsFunc(c.Hooks, func(h Hook) bool {
		return h.Hook == hook.MapDocument || h.Hook == hook.MapBatch || h.Hook == hook.TokenWeights
	})
}

// Stream is data.stream, or No where auto streams nothing, whatever the files are.
func (c Config) Stream() Choice {
	if !c.streamable() {
		return No
	}
	return c.Data.Stream
}

func (c Config) validateLoop() error {
	t := c.Train
	for _, n := range []struct {
		key              string
		value, from, max int
	}{
		{"train.steps", t.Steps, 0, schedule.MaxBatches}, {"train.batch_size", t.BatchSize, 1, 1 << 20},
		{"train.microbatches", t.Microbatches, 1, 1 << 20}, {"train.eval_every", t.EvalEvery, 0, 1 << 30},
		{"train.eval_batches", t.EvalBatches, 0, 1 << 30}, {"train.eval_questions", t.EvalQuestions, 0, 1 << 30},
		{"train.save_every", t.SaveEvery, 0, 1 << 30}, {"train.keep", t.Keep, 0, 1 << 30},
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
	s := c.LRSchedule()
	for _, f := range s.Fields() {
		if err := f.Check(); err != nil {
			return fielderror.In("lr", err)
		}
	}
	return nil
}

// LRSchedule is the schedule of the learning rate.
func (c Config) LRSchedule() optim.Schedule {
	l := c.LR
	return optim.Schedule{Name: l.Schedule, Steps: c.Train.Steps, Warmup: l.Warmup, MinRatio: l.MinRatio, Decay: l.Decay}
}

// oneOf refuses a text that is none of the key's values, or none of names if these are given.
func oneOf(key, found string, names ...string) error {
	if len(names) == 0 {
		names = values()[key]
	}
	if !slices.Contains(names, found) {
		return Invalid(key, found, "one of %s%s", strings.Join(names, ", "), suggest.DidYouMean(found, names))
	}
	return nil
}
