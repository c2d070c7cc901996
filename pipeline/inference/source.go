// Package inference uses trained models from runs, checkpoints, folders in Hugging Face's layout, and GGUF files. It
// evaluates them, answers tasks, generates text, exports models, and stores their most likely tokens for distillation.
//
// OpenWeights opens a model as a Source. Evaluate, AnswerTasks, TopK, NewGenerator and NewBatch load it on a device and
// run programs there; Export copies it.
package inference

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/pretrained"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Source is a trained model on disk.
type Source struct {
	Dir       string // the folder with its tensors
	Model     model.Model
	Tokenizer tokenizer.Tokenizer

	hooks      *hooks.Set        // with the module that builds the model; nil: none does
	saved      *config.HookModel // config.json of a model that a hook builds; nil: none does
	weights    *weights.Source
	checkpoint *checkpoint.Checkpoint // nil if the folder is none
	config     *config.Config         // of the run that wrote the checkpoint
	damaged    []checkpoint.Problem   // checkpoints that were passed over
	assumed    string                 // of the tokenizer, in words; "": nothing
}

// places are where OpenModel finds models.
const places = "a run folder, a checkpoint, " + pretrained.Expected

// OpenModel finds a model: in a run folder (its latest good checkpoint), a checkpoint, a folder in Hugging Face's
// layout, or a GGUF file. tok names a tokenizer other than the model's own.
func OpenModel(path, tok string) (*Source, error) {
	src := &Source{Dir: path}
	c, err := src.openCheckpoint(path)
	if err != nil {
		return nil, err
	}
	return src, src.open(c, tok)
}

// OpenStep is OpenModel of a run's checkpoint of one step.
func OpenStep(run string, step int, tok string) (*Source, error) {
	src := &Source{Dir: run}
	c, err := checkpoint.At(run, step)
	if err != nil {
		return nil, err
	}
	return src, src.open(c, tok)
}

// OpenWeights is OpenModel, or OpenStep if step is not nil, and then Choose. note may be nil. If a run in progress
// deletes the checkpoint that is being opened, OpenWeights opens the newest one instead. Its errors are marked by
// usererror.
func OpenWeights(path string, step *int, tok string, v Version, note func(format string, args ...any)) (src *Source, err error) {
	for range checkpoint.MaxAttempts {
		if src, err = openOnce(path, step, tok, v, note); err == nil {
			return src, nil
		}
		if src == nil || src.checkpoint == nil || !src.checkpoint.Gone() {
			break
		}
	}
	return nil, usererror.New(err)
}

// openOnce is one attempt of OpenWeights. If it returns an error, the source is closed.
func openOnce(path string, step *int, tok string, v Version, note func(format string, args ...any)) (src *Source, err error) {
	if step != nil {
		src, err = OpenStep(path, *step, tok)
	} else {
		src, err = OpenModel(path, tok)
	}
	if err != nil {
		return src, err
	}
	for _, n := range src.weights.Notes() {
		orSilent(note)("%s: %s", src.Dir, n)
	}
	if err := src.Choose(v, orSilent(note)); err != nil {
		return src, errors.Join(err, src.Close())
	}
	return src, nil
}

// orSilent is note, or a function that does nothing.
func orSilent(note func(format string, args ...any)) func(format string, args ...any) {
	if note == nil {
		return func(string, ...any) {}
	}
	return note
}

// Name is the model's name for people: the name of its run, of a model of the Hub, or of its folder or file.
func (src *Source) Name() string {
	dir := src.Dir
	if name := hub.NameOf(dir); name != "" {
		return path.Base(name)
	}
	if src.checkpoint != nil && filepath.Base(filepath.Dir(dir)) == checkpoint.Folder {
		dir = filepath.Dir(filepath.Dir(dir))
	}
	if abs, err := filepath.Abs(dir); err == nil { // of .
		dir = abs
	}
	return filepath.Base(dir)
}

// open reads everything but the tensors.
func (src *Source) open(c *checkpoint.Checkpoint, tok string) (err error) {
	if err := src.readRun(c); err != nil {
		return err
	}
	if err := src.openModel(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, src.hooks.Close())
		}
	}()
	if src.Tokenizer, err = src.tokenizer(tok); err != nil {
		return err
	}
	if err := tokenizer.CheckRows(src.Tokenizer, src.Model.Size().VocabSize); err != nil {
		return fmt.Errorf("%s: %w; training with init.from and init.extend_vocab: true adds rows", src.Dir, err)
	}
	src.weights, err = weights.Open(src.Dir, src.Model)
	return err
}

// openModel reads the model's config. The module of a model that a hook builds lies beside it.
func (src *Source) openModel() (err error) {
	if !gguf.IsFile(src.Dir) {
		if src.saved, err = config.ReadHookModel(src.Dir); err != nil {
			return err
		}
	}
	if src.saved == nil {
		src.Model, err = config.ReadModel(src.Dir)
		return err
	}
	h, m, err := hooks.OpenModel(src.saved, src.Dir)
	if err == nil {
		src.hooks, src.Model = h, m
	}
	return err
}

// readRun reads the config of the run that wrote the checkpoint, if the model is in one.
func (src *Source) readRun(c *checkpoint.Checkpoint) error {
	if c == nil {
		return nil
	}
	src.Dir, src.checkpoint = c.Dir, c
	text, err := c.File(config.SavedFile)
	if err != nil {
		return err
	}
	run, err := config.ParseSaved(filepath.Join(c.Dir, config.SavedFile), text)
	src.config = &run
	return err
}

// openCheckpoint opens the checkpoint that a path names, and records the damaged ones that it passes over. It returns
// nil for a model that is not in a checkpoint.
func (src *Source) openCheckpoint(path string) (c *checkpoint.Checkpoint, err error) {
	if path == "" {
		return nil, errors.New("no model is named: expected " + places)
	}
	if _, err := os.Stat(filepath.Join(path, checkpoint.Folder)); err == nil {
		c, src.damaged, err = checkpoint.Latest(path)
		return c, err
	}
	if _, err := os.Stat(filepath.Join(path, "manifest.json")); err == nil {
		return checkpoint.Open(path)
	}
	src.Dir, err = pretrained.Find(path, places)
	return nil, err
}

// validationText opens the named files, or the validation text of the run.
func (src *Source) validationText(ctx context.Context, files []string) (text *data.Corpus, name string, err error) {
	o, err := src.textOptions()
	if err != nil {
		return nil, "", err
	}
	o.Train, o.SeqLen, o.Field = files, src.Model.Size().SeqLen, "text"
	if len(files) > 0 {
		text, err := loadFiles(ctx, o)
		return text, strings.Join(files, ", "), err
	}
	if src.config == nil {
		return nil, "", src.noRun()
	}
	if err := src.config.CheckPaths("data.train", "data.mix", "data.val"); err != nil {
		return nil, "", err
	}
	c := src.config.Data
	o.Val = c.Val
	trainingFiles(&o, c)
	if len(c.Val) == 0 { // it was split off the documents that hooks had mapped
		var h *hooks.Set
		if h, err = src.mappers(); err != nil {
			return nil, "", err
		}
		defer func() { err = errors.Join(err, h.Close()) }()
		o.ValFraction, o.Map, o.Stream = c.ValFraction, h.Documents.Open(), data.StreamOf(string(src.config.Stream()))
	}
	train, val, err := data.Load(ctx, o)
	if err != nil {
		return nil, "", fielderror.In("data", err)
	}
	if val == nil {
		return nil, "", errors.Join(fmt.Errorf("%s: the run held no text out: name one with --data", src.Dir), train.Close())
	}
	return val, "held-out text of the run", nil
}

// textOptions encode texts as the run did; a model without a run takes shards of any framing.
func (src *Source) textOptions() (o data.Options, err error) {
	var framing tokenizer.Framing
	if src.config != nil {
		framing = src.config.Data.Framing()
		o.Framing = &framing
	}
	o.Vocab = src.Model.Size().VocabSize
	if o.Tokenizer, err = framing.Frame(src.Tokenizer); err != nil {
		return o, fmt.Errorf("data.bos of the run in %s: %w", src.Dir, err)
	}
	return o, nil
}

// trainingText opens the named files, or the training text of the run with its validation text.
func (src *Source) trainingText(ctx context.Context, files []string, field string) (text *data.Corpus, name string, err error) {
	o, err := src.textOptions()
	if err != nil {
		return nil, "", err
	}
	o.Train, o.Field = files, field
	if len(files) > 0 {
		text, err := loadFiles(ctx, o)
		return text, strings.Join(files, ", "), data.FieldSetting(err, "--field")
	}
	if src.config == nil {
		return nil, "", src.noRun()
	}
	if err := src.config.CheckPaths("data.train", "data.mix"); err != nil {
		return nil, "", err
	}
	h, err := src.mappers()
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	trainingFiles(&o, src.config.Data)
	o.Map = h.Documents.Open()
	text, _, err = data.Load(ctx, o)
	return text, "training text of the run", data.FieldSetting(fielderror.In("data", err), "data.field")
}

// noRun is the error of a model that is not a checkpoint of a run, and so has no text.
func (src *Source) noRun() error {
	return fmt.Errorf("%s: found a model without the run that made it, expected a text to be named with --data", src.Dir)
}

// trainingFiles sets the training files of a run.
func trainingFiles(o *data.Options, c config.Data) {
	o.Train, o.Field = c.Train, c.Field
	for _, s := range c.Mix {
		o.Mix = append(o.Mix, data.Source(s))
	}
}

// loadFiles loads files that the user names with --data.
func loadFiles(ctx context.Context, o data.Options) (*data.Corpus, error) {
	text, _, err := data.Load(ctx, o)
	return text, fielderror.Rename(err, func(string) string { return "--data" })
}

// reportFindings reports what was found in files that the user named; training reported it of a run's own.
func reportFindings(text *data.Corpus, files []string, note func(format string, args ...any)) {
	if len(files) == 0 {
		return
	}
	found := text.Findings()
	for _, s := range found.Notes() {
		orSilent(note)("%s: %s", strings.Join(files, ", "), s)
	}
}

// mappers loads the run's modules that map documents.
func (src *Source) mappers() (*hooks.Set, error) {
	c := *src.config
	c.Hooks = slices.DeleteFunc(slices.Clone(c.Hooks), func(h config.Hook) bool { return h.Hook != hook.MapDocument })
	if err := c.CheckPaths("hooks"); err != nil {
		return nil, err
	}
	return hooks.Open(c.Hooks, hooks.Options{Kinds: []string{hook.MapDocument}})
}

// loaded is a session and its device.
type loaded struct {
	engine.Session
	dev device.Device
}

func (l loaded) Close() error { return errors.Join(l.Session.Close(), l.dev.Close()) }

// Target is the device that a model runs on.
type Target struct {
	Device  string // as users write it
	Open    layout.OpenDevice
	Execute engine.Executor // nil: runtime/exec
}

// load loads programs with the model's weights on a device. The session closes the device.
func (src *Source) load(t Target, programs map[string]*graph.Graph) (s engine.Session, err error) {
	execute := t.Execute
	if execute == nil {
		execute = engine.Execute(nil, 0)
	}
	dev, err := t.Open(t.Device)
	if err != nil {
		return nil, usererror.New(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.Close())
		}
	}()
	planned, err := execute(dev, programs, nil)
	if err != nil {
		return nil, layout.MarkTooLarge(fmt.Errorf("%s: %w", dev.Info().Name, err))
	}
	session, err := planned.Load()
	if err != nil {
		return nil, err
	}
	if err := src.weights.Upload(session); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return loaded{session, dev}, nil
}

// Close closes the model's files.
func (src *Source) Close() error { return errors.Join(src.weights.Close(), src.hooks.Close()) }
