package train

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// job is the model, the data, the hooks and the optimizer of a run.
type job struct {
	config    config.Config
	options   Options
	journal   *journal // the Report of the options
	hooks     *hooks.Set
	model     model.Model
	read      *Texts // by this run, which closes them; nil: the run has the texts of the options, or none yet
	corpus    *corpus
	tasks     taskRows
	task      hooks.Task
	optimizer *optim.Optimizer
	links     func() []metrics.Value // what the links of a pipeline in other processes carry; nil: there are none
	tokens    int64                  // that the steps so far have trained on: padding does not count
	cut       []config.CutPoint      // of the checkpoint's run, see keepCut; nil: the config's
}

// checkPaths refuses missing files, except for modules of models, which checkpoints hold, too.
func (j *job) checkPaths(context.Context) error {
	c := j.config
	c.Hooks = slices.DeleteFunc(slices.Clone(c.Hooks), func(h config.Hook) bool { return h.Hook == hook.BuildModel })
	return c.CheckPaths()
}

// openHooks loads the modules. One of them may build the model.
func (j *job) openHooks(ctx context.Context) (err error) {
	o := hooks.Options{CacheDir: j.options.Hooks.Cache}
	if j.options.Resume {
		run := j.config.Run.Dir
		if from := j.options.From; from != nil {
			run = from.Run
		}
		o.Saved = hooks.SavedModules(j.config.Hooks, run, j.options.Report.Note)
	}
	if j.hooks, err = hooks.Open(j.config.Hooks, o); err != nil {
		return err
	}
	if j.model, err = openModel(j.config, j.hooks); err != nil {
		return err
	}
	return j.openRate(ctx)
}

// openModel returns the model of a config or of a hook, in the config's precision.
func openModel(c config.Config, h *hooks.Set) (model.Model, error) {
	m, err := h.Model(c.Model, c.Rows())
	if err == nil {
		err = usererror.New(c.Pipeline.CheckUnits(m))
	}
	if err != nil {
		return nil, err
	}
	return layout.InPrecision(c, m)
}

// openRate opens the module that sets the learning rate, if there is one.
func (j *job) openRate(ctx context.Context) error {
	return j.hooks.Rate.Open(ctx, j.config.LRSchedule())
}

// makeOptimizer applies the config's optimizer to the model.
func (j *job) makeOptimizer(context.Context) (err error) {
	factor := j.options.Hooks.RateFactor
	if factor == nil {
		factor = j.hooks.Rate.Factor()
	}
	j.optimizer, err = layout.NewOptimizer(j.config, j.model, factor)
	return usererror.New(err)
}

// makeTask builds the loss and opens its scalars.
func (j *job) makeTask(ctx context.Context) (err error) {
	aligned := j.corpus.train.Aligned()
	if j.task, err = hooks.NewTask(ctx, j.config, j.hooks, j.model, aligned, j.hooks.BatchInputs(j.config.Data)); err != nil {
		return err
	}
	if j.task.Unread > 0 {
		j.options.Report.Note("data.aligned: hooks read %d of its %d tensors", len(aligned)-j.task.Unread, len(aligned))
	}
	return j.openScalars(ctx)
}

// openScalars opens the module that sets the scalars of the loss, if there is one.
func (j *job) openScalars(ctx context.Context) error {
	return j.hooks.Scalars.Open(ctx, j.task.Loss, j.config.Train.Steps)
}

// rewind resets the parts of the job that follow the steps of the run, for another start.
func (j *job) rewind(ctx context.Context) error {
	j.tokens = 0
	if err := j.hooks.Rewind(); err != nil {
		return err
	}
	return j.openRate(ctx)
}

// layoutTask is the job as package layout takes it.
func (j *job) layoutTask() layout.Task {
	c := j.config.Alone()
	if len(j.cut) > 0 {
		c.Pipeline.Cut = j.cut
	}
	return layout.Task{Config: c, Model: j.model, Loss: j.task.Build(), Inputs: j.task.Inputs}
}

// lastStep is the step after which the run ends: the last of the config, or an earlier one of Options.StopAfter.
func (j *job) lastStep() int {
	if stop := j.options.StopAfter; stop > 0 {
		return min(stop, j.config.Train.Steps)
	}
	return j.config.Train.Steps
}

// tokensLeft is about how many tokens the steps after a step train on.
func (j *job) tokensLeft(step int) int64 {
	return j.withoutPadding(j.config.Sequences(step, j.config.Train.Steps) * int64(j.config.Model.SeqLen))
}

// withoutPadding is about how many of some positions of batches have tokens of documents.
func (j *job) withoutPadding(positions int64) int64 {
	return int64(float64(positions) * j.corpus.train.Share())
}

// lastOfSize is the last step with batches of the current size.
func (j *job) lastOfSize(step int) int {
	if next := j.config.NextBatchSize(step); next > 0 {
		return min(next, j.config.Train.Steps)
	}
	return j.config.Train.Steps
}

// takePosition goes on at the data position of a checkpoint with the batch size of its step.
func (j *job) takePosition(ctx context.Context, s state) error {
	j.config = j.config.At(s.Step)
	j.tokens = s.Tokens
	return j.makeOptimizer(ctx)
}

// modelJSON is config.json of a checkpoint.
func (j *job) modelJSON() json.RawMessage {
	if m, ok := j.hooks.ModelModule(); ok {
		return m.JSON(j.model.Size(), "float32")
	}
	return j.config.Model.JSON()
}

// initialWeights are given weights, or random ones.
func (j *job) initialWeights() (*weights.Source, error) {
	from := j.config.Init.From
	if from == "" {
		return weights.Random(j.model, j.config.Init.Seed), nil
	}
	w, err := j.givenWeights(from)
	for _, note := range w.Notes() {
		j.options.Report.Note("init.from: %s: %s", from, note)
	}
	return w, err
}

// givenWeights opens the weights of init.from.
func (j *job) givenWeights(from string) (*weights.Source, error) {
	c := j.config.Model
	switch {
	case c.FromHook():
		return weights.Open(from, j.model)
	case !j.config.Init.ExtendVocab:
		return weights.Open(from, c.Config)
	}
	found, err := config.ReadModel(from)
	if err != nil {
		return nil, usererror.New(err)
	}
	if n := c.VocabSize - found.VocabSize; n > 0 {
		j.options.Report.Note("init.extend_vocab: %d tokens are new: their rows are the mean of the %d rows in %s", n, found.VocabSize,
			from)
	}
	return weights.OpenExtended(from, c.Config, found.VocabSize)
}

func (j *job) close() error {
	var err error
	if j.read != nil {
		err = j.read.Close()
	}
	return errors.Join(err, j.hooks.Close())
}
