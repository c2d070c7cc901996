// Package train trains a model as a config describes.
//
// A run passes through these steps:
//
//	job          opens the parts of the training: hooks, model, corpus, loss, optimizer
//	checkpoints  find where the run starts: at a checkpoint, at given weights, or at random ones
//	loader       makes the batches, with the hooks that change them
//	deployment   opens the devices, plans the pipeline's engine and loads it; it is opened again after a fault
//	loop         trains, evaluates and saves; see trainer.loop
//	recorder     writes what the loop measures to the run folder and reports it
package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// Options are what a run needs besides its config.
type Options struct {
	Resume    bool     // continue from the latest good checkpoint of run.dir; without one, start
	From      *From    // continue from this checkpoint instead; nil: do not
	Prepared  Prepared // what the caller has done
	StopAfter int      // evaluate, save and end as interrupted after this step, if train.steps is larger; 0: do not
	Unsaved   bool     // write no checkpoint, and evaluate nothing
	// Saves counts requests for a checkpoint: whenever it has grown, the run saves one after its current step and goes
	// on. nil: there are none.
	Saves   *atomic.Int64
	Devices DeviceOptions
	Hooks   HookOptions
	Report  Report          // nil: Silent
	Plots   bool            // draw the losses and the loads of experts at the end
	Profile *ProfileOptions // nil: kernels are not measured
}

// Prepared are parts of a run that the caller of Run has prepared.
type Prepared struct {
	Folder *Reservation // of run.dir; nil: the run takes the folder for itself
	Texts  *Texts       // of the config's files, as Check has read them; nil: the run reads them
	// Arrivals are files of data.train that are not there yet, for data.stream; nil: all are there.
	Arrivals data.Arrivals
}

// DeviceOptions describe the devices of a run, and how it uses them.
type DeviceOptions struct {
	Open       layout.OpenDevice
	OpenWorker OpenWorker      // nil: pipeline.isolate: process is an error
	Remote     Remote          // opens the pipeline in other processes; nil: on devices of this one
	Execute    engine.Executor // nil: runtime/exec
	// Tune chooses among the candidates of kernels; nil is the static choice. A resumed run begins with the choices of
	// its checkpoint. Kernels whose timing is postponed are timed between steps.
	Tune        *tune.Cache
	TimingShare float64        // of the time that timing kernels between steps may take; 0: 0.02
	Costs       *measure.Cache // measured times of units, by device; nil: the model is cut by modelled times
	// Peak measures how many FLOP/s a device computes at most, for the MFU of GPUs that package measure does not know
	// and of CPUs; nil: not measured.
	Peak func(device.Device) (float64, error)
	// Concurrent is the number of runs at a time, which divide the cores of a CPU that is a device; 0: one.
	Concurrent int
}

// HookOptions describe how a run calls hooks.
type HookOptions struct {
	Cache     string // folder for compiled hooks, which no other user may write to; "" keeps none
	Instances int    // of a module that process batches in parallel; 0: one per core
	// RateFactor is the factor on all learning rates at a step, counted from 0. nil: the factor of the config's
	// schedule and hooks. Pipelines of other processes do not have it.
	RateFactor func(step int) float64
}

// Result is how a run ended.
type Result struct {
	Dir            string   `json:"dir"`
	Step           int      `json:"step"`
	Checkpoint     string   `json:"checkpoint"`
	Best           *Best    `json:"best,omitempty"` // of train.keep_best
	Begun          bool     `json:"-"`              // the run has written its files
	Interrupted    bool     `json:"interrupted,omitempty"`
	Idle           bool     `json:"-"`                  // interrupted before it had done a step: nothing new was saved
	Stopped        string   `json:"stopped,omitempty"`  // the hook that ended the run early
	Loss           *float64 `json:"loss,omitempty"`     // of the last step that was not skipped
	ValLoss        *float64 `json:"val_loss,omitempty"` // nats per token
	UnigramEntropy float64  `json:"unigram_entropy"`    // of the validation text, nats per token
	// Validation says what ValLoss was measured on; nil without one.
	Validation  *Validation `json:"validation,omitempty"`
	Plot        string      `json:"plot,omitempty"`
	ExpertsPlot string      `json:"experts_plot,omitempty"` // of the loads of mixtures of experts
	Profile     string      `json:"profile,omitempty"`      // the page
}

// Validation is what a validation loss is measured on.
type Validation struct {
	Text    string `json:"text"`    // the files of data.val, or that it is the run's held-out text
	Batches int64  `json:"batches"` // of train.batch_size sequences, that are measured
	Of      int64  `json:"of"`      // in the text
	Tokens  int64  `json:"tokens"`  // that are measured
}

// ErrDiverged is wrapped by the error of a run whose loss, gradient or validation loss is no longer finite.
var ErrDiverged = errors.New("training stopped")

// Run trains. When ctx ends it finishes the current step, saves, and returns with Interrupted set. Before the first
// step is done it does not wait: a resumed run returns at its checkpoint, and a run that has written nothing returns
// the error of ctx. Run finds everything that is wrong with its input before it writes anything; such errors are marked
// by usererror.
func Run(ctx context.Context, c config.Config, o Options) (res Result, err error) {
	if o.Report == nil {
		o.Report = Silent{}
	}
	t := newTrainer(c, o)
	defer func() { err = errors.Join(err, t.close(err)) }()
	defer func() {
		t.job.noteLate(true)
		t.noteEnd(ctx, err)
	}()
	if err := t.do(ctx, t.job.checkIsolation, t.prepare); err != nil {
		return t.outcome(), err
	}
	if err := t.restartOnFailure(ctx, t.train(ctx)); err != nil {
		t.endSave()
		return t.outcome(), err
	}
	err = t.finish()
	return t.outcome(), err
}

// Check finds everything that is wrong with the input of a run whose ranks may be in other processes, as Run does
// before it writes anything, and leaves nothing behind. local are the devices of this process that compute: the model
// must fit them, as far as that is known without the others. It reports how much of the text it has read, and nothing
// else. The texts that it returns are for the Options of Run; the caller closes them.
func Check(ctx context.Context, c config.Config, o Options, local []string) (texts *Texts, err error) {
	if o.Report == nil {
		o.Report = Silent{}
	}
	o.Report = reading{report: o.Report}
	t := newTrainer(c, o)
	defer func() { err = errors.Join(err, t.close(err)) }()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	if err := t.job.checkMemory(ctx, local); err != nil {
		return nil, err
	}
	texts, t.job.read = t.job.read, nil
	return texts, nil
}

// reading is a Report that passes on what Reading reports.
type reading struct {
	Silent
	report Report
}

// Reading implements Report.
func (r reading) Reading(done, total int64) { r.report.Reading(done, total) }

// trainer is a run in progress.
type trainer struct {
	job         *job
	folder      *folder
	checkpoints *checkpoints
	start       start // where the run began, or began again after a fault
	loader      *loader
	deployment  *deployment
	tuning      tuning
	recorder    *recorder
	result      Result

	step        int             // finished
	skipped     int             // batches in a row
	firstUpdate int             // its step, since the run began, or began again after a fault; 0: none yet
	asked       int64           // requests for a checkpoint that were met; see Options.Saves
	suspected   *suspectedBatch // nil: none
	abandoned   bool            // interrupted before the first step was done; see leave
}

func newTrainer(c config.Config, o Options) *trainer {
	log := &journal{Report: o.Report}
	o.Resume = o.Resume || o.From != nil
	o.Report = log
	var asked int64
	if o.Saves != nil {
		asked = o.Saves.Load() // for runs before
	}
	j := &job{config: c, options: o, journal: log}
	return &trainer{job: j, folder: newFolder(c.Run.Dir, o.Prepared.Folder), loader: &loader{},
		checkpoints: &checkpoints{dir: c.Run.Dir, keepBest: c.Train.KeepBest, saved: noCheckpoint},
		deployment:  &deployment{job: j, tune: j.options.Devices.Tune}, asked: asked, result: Result{Dir: c.Run.Dir},
		recorder: &recorder{job: j, system: system{usage: usage{busy: map[string]time.Duration{}}}}}
}

// prepare opens everything that needs no device.
func (t *trainer) prepare(ctx context.Context) error {
	for _, n := range t.job.config.Notes() {
		t.job.options.Report.Note("%s", n)
	}
	return t.do(ctx, t.job.checkPaths, t.job.openHooks, t.job.openCorpus, t.job.openTasks, t.job.makeOptimizer,
		t.takeFolder, t.findStart, t.job.makeTask, t.openLoader)
}

// train opens the devices and the run folder, and trains.
func (t *trainer) train(ctx context.Context) error {
	return t.do(ctx, t.checkLargestRemote, t.openDeployment, t.checkLargest, t.measurePeaks, t.loadDeployment, t.firstBatch, t.openFolder,
		t.announce, t.loop)
}

// do runs the steps in order and stops at the first error. After each step it reports what hooks have logged.
func (t *trainer) do(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		err := step(ctx)
		t.job.hooks.Flush(t.job.options.Report.Note)
		if err != nil {
			return err
		}
	}
	return nil
}

// takeFolder creates and locks the run folder. From then on text is read ahead, with a temporary file there.
func (t *trainer) takeFolder(context.Context) error {
	if err := t.folder.take(t.job.options.Report.Note); err != nil {
		return err
	}
	t.job.corpus.train.ReadAhead(t.folder.path)
	return nil
}

// findStart decides where the run starts: at a checkpoint, at given weights, or at random ones.
func (t *trainer) findStart(ctx context.Context) (err error) {
	t.checkpoints.forget()
	if t.start, err = t.findCheckpoint(ctx); err != nil {
		return usererror.New(err)
	}
	if t.start.weights == nil {
		if err := t.job.hooks.Metrics.Open(ctx, nil); err != nil {
			return err
		}
		if t.start.weights, err = t.job.initialWeights(); err != nil {
			return usererror.New(err)
		}
		return nil
	}
	t.step = t.start.step
	t.checkpoints.found(t.start)
	if t.start.pending != nil {
		t.recorder.pending = &pendingStep{Progress: *t.start.pending}
	}
	return nil
}

// openLoader starts the hooks that change batches.
func (t *trainer) openLoader(context.Context) (err error) {
	t.loader, err = openLoader(t.job, t.start)
	return err
}

// firstBatch waits for the next batch, so that a module that cannot make it is reported before anything is written.
func (t *trainer) firstBatch(ctx context.Context) error {
	if t.step >= t.job.config.Train.Steps {
		return nil
	}
	return t.loader.await(ctx, t.step)
}

// openDeployment opens the devices and plans the pipeline.
func (t *trainer) openDeployment(ctx context.Context) error {
	return t.deployment.open(ctx, t.checkpoints.any())
}

// loadDeployment brings the programs and the initial state to the devices. Then it closes the checkpoint that the run
// starts from: Windows removes no open files, and other systems keep their space.
func (t *trainer) loadDeployment(ctx context.Context) error {
	if err := t.deployment.load(ctx, t.step, t.start); err != nil || t.job.options.Devices.Remote != nil {
		return err
	}
	weights := t.start.weights
	t.start.weights = nil
	return weights.Close()
}

// openFolder creates the files that the run writes, once.
func (t *trainer) openFolder(context.Context) error {
	if !t.folder.begun {
		done := t.step
		if t.checkpoints.unreported {
			done--
		}
		for _, step := range []func() error{
			func() error { return t.checkpoints.open(t.job.config.Train.Keep) },
			func() error { return t.goFrom(done) },
			func() error {
				return atomicfile.WriteBytes(filepath.Join(t.folder.path, configFile), t.job.config.SavedYAML())
			},
			func() error { return t.deployment.writeKernels() },
			func() error {
				return t.recorder.open(done, t.step >= t.job.config.Train.Steps && !t.checkpoints.unreported)
			},
			t.folder.completeBranch,
			t.checkpoints.findBest,
		} {
			if err := step(); err != nil {
				return usererror.Errorf("run folder: %w", err)
			}
		}
		t.folder.begun, t.folder.begunAt = true, t.step
	}
	t.deployment.engine.SetTrace(t.recorder.openTracks(t.deployment.engine.Ranks(), t.deployment.devices, t.loader.feeder))
	return nil
}

// announce reports the run that is about to begin, once.
func (t *trainer) announce(context.Context) error {
	if t.recorder.announced {
		return nil
	}
	t.recorder.announced = true
	c, report := t.job.config, t.job.options.Report
	s := Start{Dir: c.Run.Dir, Config: string(c.YAML()), Changed: c.At(0).Changed(), Ranks: t.deployment.engine.Ranks(),
		Parameters: t.job.model.Count(), Active: t.job.model.ActiveCount(), Optimizer: t.job.optimizer.String(),
		Precision: layout.DescribePrecision(c.Train.DType(), t.deployment.devices), Data: t.job.corpus.sizes(), FirstStep: t.step,
		Steps: c.Train.Steps}
	if first, all := t.job.corpus.texts.train.Files(); first < all {
		s.FirstFiles, s.Files = first, all
	}
	for i, dev := range t.deployment.devices {
		s.Ranks[i].Allocated, s.Ranks[i].Staging = dev.Allocated()
	}
	report.Start(s)
	t.noteStart(s)
	for _, note := range t.deployment.engine.Notes() {
		report.Note("%s", note)
	}
	if t.deployment.isolated() && c.Train.SaveEvery == 0 {
		report.Note("train.save_every is 0: should a device be lost, training begins again at step %d", t.step+1)
	}
	return nil
}

// outcome is the result so far.
func (t *trainer) outcome() Result {
	r := t.result
	r.Begun, r.Best = t.folder.begun, t.checkpoints.best
	r.Checkpoint, r.Loss, r.Stopped, r.Profile = t.checkpoints.newest, t.recorder.loss, t.recorder.stopped,
		t.deployment.profiling.pagePath()
	return r
}

// finish writes the profile and draws the loss over all steps, those before a resumption included.
func (t *trainer) finish() (err error) {
	c := t.job.config
	t.result.Step, t.result.UnigramEntropy = t.step, t.job.corpus.entropy
	if err := t.deployment.profiling.write(t.step, true); err != nil {
		return err
	}
	if best := t.recorder.pace.best; best > 0 {
		t.deployment.comparePrediction(float64(t.job.withoutPadding(c.BatchTokens())) / best)
	}
	if t.step == 0 || !t.folder.begun || !t.job.options.Plots {
		return nil
	}
	if t.result.Plot, err = plotLoss(c, t.job.model.Count(), t.job.corpus.entropy); err != nil {
		return err
	}
	t.result.ExpertsPlot, err = plotLoads(c, t.job.model)
	return err
}

// close releases everything. After a failure it does not wait for ever: a device that hangs must not hide the error.
func (t *trainer) close(failed error) error {
	timeout := shutdownTimeout
	switch {
	case t.abandoned:
		timeout = time.Second
	case failed == nil:
		return t.closeAll()
	case t.deployment.isolated():
		kill(t.deployment.devices)
	}
	closed := make(chan error, 1)
	go func() { closed <- t.closeAll() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(timeout):
	}
	if t.abandoned { // devices that compile finish later, or end with the process
		t.folder.leave()
		return nil
	}
	return fmt.Errorf("the devices are still busy after %v: their memory is not released", timeout)
}

// closeAll closes the files first, then the parts that may take long.
func (t *trainer) closeAll() error {
	t.loader.close() // ends ranks that wait for a batch
	t.checkpoints.await()
	if t.deployment.engine != nil && t.job.options.Devices.Remote != nil {
		t.deployment.engine.SetTrace(nil) // takes the last events from other processes
	}
	err := errors.Join(t.recorder.close(), t.job.journal.close(), t.deployment.close(), t.start.weights.Close(), t.job.close())
	t.folder.leave()
	return err
}
