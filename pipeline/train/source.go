package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/hooks"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/tokenizer"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Source is a trained model on disk.
type Source struct {
	Dir       string // the folder with its tensors
	Model     model.Model
	Tokenizer tokenizer.Tokenizer

	hooks      *hooks.Set        // the one that writes the model, if one does
	saved      *config.HookModel // nil: none does
	weights    *weights
	checkpoint *checkpoint.Checkpoint // nil where it is none
	config     *config.Config         // of the run whose checkpoint it is
	passed     []checkpoint.Problem   // damaged checkpoints
}

// OpenModel finds a model: in a run folder (its latest good checkpoint), a checkpoint, or a folder in Hugging Face's Llama
// layout. tok names a tokenizer other than the one found with the model.
func OpenModel(path, tok string) (*Source, error) {
	src := &Source{Dir: path}
	c, err := openCheckpoint(path, src)
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

// OpenWeights is OpenModel, or OpenStep where step is not nil, and then Choose; note may be nil. A run may go on meanwhile: when it deletes a
// checkpoint that is being opened, the newest is opened instead. Its errors are marked by usererror.
func OpenWeights(path string, step *int, tok string, w Weights, note func(format string, args ...any)) (src *Source, err error) {
	for range checkpoint.MaxAttempts {
		if src, err = openChosen(path, step, tok, w, note); err == nil {
			return src, nil
		}
		if src == nil || src.checkpoint == nil || !src.checkpoint.Gone() {
			break
		}
	}
	return nil, usererror.New(err)
}

// openChosen is OpenWeights at the first look. With an error the source, if there is one, is closed.
func openChosen(path string, step *int, tok string, w Weights, note func(format string, args ...any)) (src *Source, err error) {
	if step != nil {
		src, err = OpenStep(path, *step, tok)
	} else {
		src, err = OpenModel(path, tok)
	}
	if err != nil {
		return src, err
	}
	if err := src.Choose(w, heard(note)); err != nil {
		return src, errors.Join(err, src.Close())
	}
	return src, nil
}

// heard is where messages for the user go, if anywhere.
func heard(note func(format string, args ...any)) func(format string, args ...any) {
	if note == nil {
		return Silent{}.Note
	}
	return note
}

// open reads everything but the tensors.
func (src *Source) open(c *checkpoint.Checkpoint, tok string) (err error) {
	if err := src.keep(c); err != nil {
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
	if n, vocab := src.Tokenizer.VocabSize(), src.Model.Size().VocabSize; n > vocab {
		return fmt.Errorf("the tokenizer %q has %d tokens, but the model in %s only %d", src.Tokenizer.Name(), n, src.Dir, vocab)
	}
	src.weights, err = openWeights(src.Dir, src.Model)
	return err
}

// openModel reads what model it is; a module that writes it lies beside its tensors.
func (src *Source) openModel() (err error) {
	if src.saved, err = config.ReadHookModel(src.Dir); err != nil {
		return err
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

// keptConfig, in a checkpoint, is the config of its run.
const keptConfig = "train.yaml"

// keep notes the checkpoint that the model is in, if it is in one, and the run that made it.
func (src *Source) keep(c *checkpoint.Checkpoint) error {
	if c == nil {
		return nil
	}
	src.Dir, src.checkpoint = c.Dir, c
	text, err := c.File(keptConfig)
	if err != nil {
		return err
	}
	made, err := config.ParseSaved(filepath.Join(c.Dir, keptConfig), text)
	src.config = &made
	return err
}

// openCheckpoint returns nil for a folder that is neither a run nor a checkpoint.
func openCheckpoint(path string, src *Source) (c *checkpoint.Checkpoint, err error) {
	if path == "" {
		return nil, errors.New("no model is named: expected a run folder, a checkpoint, or a folder with config.json and model.safetensors")
	}
	if st, err := os.Stat(path); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%s: a file, expected a run folder, a checkpoint, or a folder with config.json and model.safetensors", path)
	}
	if _, err := os.Stat(filepath.Join(path, checkpointsDir)); err == nil {
		c, src.passed, err = checkpoint.Latest(path)
		return c, err
	}
	if _, err := os.Stat(filepath.Join(path, "manifest.json")); err == nil {
		return checkpoint.Open(path)
	}
	if _, err := os.Stat(filepath.Join(path, "config.json")); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: no model here: expected a run folder with checkpoints, a checkpoint, or a folder with config.json and model.safetensors", path)
	}
	return nil, nil
}

func (src *Source) tokenizer(name string) (tokenizer.Tokenizer, error) {
	own := filepath.Join(src.Dir, "tokenizer.json")
	_, err := os.Stat(own)
	switch {
	case name != "":
	case src.config != nil && slices.Contains([]string{"bytes", "gpt2"}, src.config.Data.Tokenizer):
		name = src.config.Data.Tokenizer
	case err == nil:
		name = own
	case src.Model.Size().VocabSize == 256:
		name = "bytes"
	default:
		return nil, fmt.Errorf("%s: no tokenizer.json: name a tokenizer with --tokenizer", src.Dir)
	}
	return tokenizer.Open(name)
}

// text opens what to evaluate on.
func (src *Source) text(ctx context.Context, o EvalOptions) (text *data.Corpus, name string, err error) {
	options := data.Options{Train: o.Data, Tokenizer: src.Tokenizer, Vocab: src.Model.Size().VocabSize, SeqLen: src.Model.Size().SeqLen, Field: "text"}
	if len(o.Data) > 0 {
		text, _, err = data.Load(ctx, options)
		return text, strings.Join(o.Data, ", "), namedByFlag(err)
	}
	if src.config == nil {
		return nil, "", fmt.Errorf("%s: no run is known to have made it: name a text with --data", src.Dir)
	}
	c := src.config.Data
	options.Train, options.Val, options.Field = c.Train, c.Val, c.Field
	if len(c.Val) == 0 { // what was held out is a part of what hooks have made
		var h *hooks.Set
		if h, err = hooks.Open(src.config.Hooks, hooks.Options{Kinds: []string{hook.MapDocument}}); err != nil {
			return nil, "", err
		}
		defer func() { err = errors.Join(err, h.Close()) }()
		options.ValFraction, options.Map = c.ValFraction, h.Documents.Open()
	}
	train, val, err := data.Load(ctx, options)
	if err != nil {
		return nil, "", fielderror.In("data", err)
	}
	if val == nil {
		return nil, "", errors.Join(fmt.Errorf("%s: the run held no text out: name one with --data", src.Dir), train.Close())
	}
	return val, "held-out text of the run", nil
}

// namedByFlag names the flag of a text in an error of data.Load, for which the text is the one to train on.
func namedByFlag(err error) error {
	return fielderror.Rename(err, func(string) string { return "data" })
}

// loaded is a session with the device that it runs on.
type loaded struct {
	engine.Session
	dev device.Device
}

func (l loaded) Close() error { return errors.Join(l.Session.Close(), l.dev.Close()) }

// load brings the model to a device, with programs to run it.
func (src *Source) load(name string, open layout.OpenDevice, execute engine.Executor, graphs map[string]*graph.Graph) (s engine.Session, err error) {
	if execute == nil {
		execute = engine.Execute(nil, 0)
	}
	dev, err := open(name)
	if err != nil {
		return nil, usererror.New(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.Close())
		}
	}()
	planned, err := execute(dev, graphs, nil)
	if err != nil {
		return nil, layout.MarkTooLarge(fmt.Errorf("%s: %w", dev.Info().Name, err))
	}
	session, err := planned.Load()
	if err != nil {
		return nil, err
	}
	if err := src.weights.upload(session); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return loaded{session, dev}, nil
}

// Close closes the model's files.
func (src *Source) Close() error { return errors.Join(src.weights.close(), src.hooks.Close()) }
