package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/hooks"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/measure"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// Options are what a run needs besides its config.
type Options struct {
	Resume     bool // continue from the latest good checkpoint of run.dir; without one, start
	OpenDevice layout.OpenDevice
	OpenWorker OpenWorker      // nil: pipeline.isolate: process cannot be asked for
	Execute    engine.Executor // nil: runtime/exec
	// Tune chooses among the candidates of kernels; nil is the static choice. A resumed run keeps the choices that it
	// began with.
	Tune  *tune.Cache
	Costs *measure.Cache // of units, by device; nil: models are cut by guesses
	// HookCache is a folder for compiled hooks, which nobody else may write to; "" keeps none.
	HookCache string
	Instances int             // of a module that work on batches at a time; 0: one a core
	Report    Report          // nil: Silent
	Profile   *ProfileOptions // nil: nothing is measured
}

// Result is how a run ended.
type Result struct {
	Dir            string   `json:"dir"`
	Step           int      `json:"step"`
	Checkpoint     string   `json:"checkpoint"`
	Interrupted    bool     `json:"interrupted,omitempty"`
	Stopped        string   `json:"stopped,omitempty"`  // the hook that ended the run early
	Loss           *float64 `json:"loss,omitempty"`     // of the last step that was not skipped
	ValLoss        *float64 `json:"val_loss,omitempty"` // nats per token
	UnigramEntropy float64  `json:"unigram_entropy"`    // of the held-out text, nats per token
	Plot           string   `json:"plot,omitempty"`
	Profile        string   `json:"profile,omitempty"` // the page
}

// Run trains. When ctx ends it finishes the step under way, saves, and returns with Interrupted set; before the first step is done it waits
// for none, and where nothing was there to be resumed and nothing is written yet, it returns the error of ctx. Everything that can be
// wrong with the input is found before anything is written; such errors are marked by usererror.
func Run(ctx context.Context, c config.Config, o Options) (res Result, err error) {
	if o.Report == nil {
		o.Report = Silent{}
	}
	r := &run{Config: c, Options: o, result: Result{Dir: c.Run.Dir}}
	defer func() { err = errors.Join(err, r.end(err)) }()
	if err := r.do(ctx, r.openHooks, r.openData, r.makeOptimizer, r.takeFolder, r.findWeights, r.makeTask, r.feedBatches); err != nil {
		return r.result, err
	}
	if err := r.survive(ctx, r.do(ctx, r.plan, r.load, r.firstBatch, r.openFolder, r.announce, r.loop)); err != nil {
		return r.result, err
	}
	return r.result, r.finish()
}

// do takes steps one after the other, up to one that fails.
func (r *run) do(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		err := step(ctx)
		r.hooks.Flush(r.Report.Note)
		if err != nil {
			return err
		}
	}
	return nil
}

// run is a training run under way.
type run struct {
	config.Config
	Options
	task   hooks.Task
	result Result
	start  Start

	hooks     *hooks.Set
	model     model.Model
	data      *corpus
	source    engine.Source
	feeder    *hooks.Feeder     // nil: no hook works on batches
	states    hooks.BatchStates // to go on from, of those that do
	leftOut   int64             // batches, before the run goes on
	weights   *weights          // to start from
	optimizer *optim.Optimizer
	devices   []device.Device // one a line of the pipeline
	unhook    []func() bool   // nil: the first step on the devices is done; see hasten
	left      bool            // the run was interrupted before that step was done
	layout    *layout.Layout  // once it is known; a restart keeps it
	engine    *engine.Engine
	profiling *profiling // nil: none

	folder folder
	store  *checkpoint.Store
	log    *metrics.Log
	events *metrics.Events
	trace  *trace.Writer

	step    int       // finished
	saved   int       // step of the newest checkpoint of this run; −1: none
	owed    bool      // the newest checkpoint was saved before its step was told of
	skipped int       // batches in a row
	suspect *suspect  // nil: none
	last    *Progress // a step that is told of when it is known what follows it
	pace    pace
	told    int // the newest step that was told of: it may be done again

	faults      []string // that devices were lost by, since a checkpoint
	since       int      // step of the newest checkpoint then
	skippedThen int      // skipped, at the newest checkpoint
}

// openHooks loads the modules of the run, of which one may write the model.
func (r *run) openHooks(ctx context.Context) (err error) {
	var saved map[string][]byte
	if r.Resume {
		saved = hooks.SavedModules(r.Hooks, r.Run.Dir, r.Report.Note)
	}
	if r.hooks, err = hooks.Open(r.Hooks, hooks.Options{Saved: saved, CacheDir: r.HookCache}); err != nil {
		return err
	}
	if r.model, err = openModel(r.Config, r.hooks); err != nil {
		return err
	}
	return r.openRate(ctx)
}

// openRate opens the module that sets the learning rate, if there is one.
func (r *run) openRate(ctx context.Context) error {
	return r.hooks.Rate.Open(ctx, r.Config.LRSchedule())
}

// plan opens the devices and asks them how the pipeline fits.
func (r *run) plan(ctx context.Context) (err error) {
	open := r.OpenDevice
	if r.isolated() {
		if open = r.openWorker; r.OpenWorker == nil {
			return usererror.New(config.Invalid("pipeline.isolate", r.Pipeline.Isolate, "%s: devices in processes of their own are for gpupipe train and study", config.IsolateNone))
		}
	}
	if r.devices, err = openDevices(open, r.Pipeline, r.restarting()); err != nil {
		return err
	}
	r.hastenDevices(ctx)
	return r.newEngine(ctx)
}

// announce tells what is about to run, once.
func (r *run) announce(context.Context) error {
	if r.start.Lines != nil {
		return nil
	}
	r.start = Start{Config: string(r.YAML()), Changed: r.Config.Changed(), Lines: r.engine.Ranks(), Parameters: r.model.Count(), Optimizer: r.optimizer.String(),
		Precision: layout.DescribePrecision(r.Train.DType(), r.devices), Data: r.data.sizes(), FirstStep: r.step, Steps: r.Train.Steps}
	for i, dev := range r.devices {
		r.start.Lines[i].Allocated, r.start.Lines[i].Staging = dev.Allocated()
	}
	r.Report.Start(r.start)
	for _, note := range r.engine.Notes() {
		r.Report.Note("%s", note)
	}
	if r.isolated() && r.Train.SaveEvery == 0 {
		r.Report.Note("train.save_every is 0: should a device be lost, training begins again at step %d", r.step+1)
	}
	return nil
}

// load brings the programs and the initial state to the devices.
func (r *run) load(ctx context.Context) error {
	r.hastenEngine(ctx)
	if err := r.prepareProfile(); err != nil {
		return err
	}
	if err := r.engine.Load(); err != nil {
		return layout.MarkTooLarge(err)
	}
	return r.weights.toPipeline(r.engine, r.Pipeline.Delay)
}

// patience is how long devices may take to come to rest after a failure.
const patience = 10 * time.Second

// end closes everything. After a failure it does not wait for ever: a device that hangs must not keep what went wrong a secret.
func (r *run) end(failed error) error {
	if r.left {
		return r.endSoon()
	}
	if failed == nil {
		return r.close()
	}
	if r.isolated() {
		kill(r.devices)
	}
	closed := make(chan error, 1)
	go func() { closed <- r.close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the devices are still at work %v later: their memory is not released", patience)
	}
}

// close closes what is written first, then what may take long.
func (r *run) close() error {
	var errs []error
	r.feeder.Close() // lines that wait for it end
	if r.log != nil {
		errs = append(errs, r.log.Close())
	}
	if r.events != nil {
		errs = append(errs, r.events.Close())
	}
	if r.trace != nil {
		errs = append(errs, r.trace.Close())
	}
	errs = append(errs, r.closeDevices())
	if r.weights != nil {
		errs = append(errs, r.weights.close())
	}
	if r.data != nil {
		errs = append(errs, r.data.close())
	}
	errs = append(errs, r.hooks.Close())
	r.folder.leave()
	return errors.Join(errs...)
}

// subtitle describes the run in a line below the title of its plot.
func (r *run) subtitle() string {
	s := fmt.Sprintf("%s, %.3g M parameters, %s", r.Model.Arch, float64(r.Model.Count())/1e6, r.Optimizer.Name())
	if r.Pipeline.Stages > 1 {
		s += fmt.Sprintf(", %s on %d stages", r.Pipeline.Schedule, r.Pipeline.Stages)
	}
	return s
}

// finish draws the loss over all steps, those before a resumption included.
func (r *run) finish() error {
	r.result.Step, r.result.UnigramEntropy = r.step, r.data.entropy
	if err := r.writeProfile(r.step, true); err != nil {
		return err
	}
	if r.layout != nil && r.layout.Prediction != nil && r.pace.best > 0 {
		r.Report.Note("speed: %s", r.layout.Prediction.Compare(float64(r.Train.BatchSize*r.Model.SeqLen)/r.pace.best))
	}
	if r.step == 0 || !r.folder.begun {
		return nil
	}
	records, err := metrics.Read(filepath.Join(r.Run.Dir, metricsFile))
	if err != nil {
		return usererror.New(err)
	}
	path := filepath.Join(r.Run.Dir, "loss.png")
	switch err := metrics.PlotLoss(path, r.Run.Dir, r.subtitle(), records, r.data.entropy); {
	case errors.Is(err, metrics.ErrNoPoint): // all batches were skipped
	case err != nil:
		return usererror.New(err)
	default:
		r.result.Plot = path
	}
	return nil
}
