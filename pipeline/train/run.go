package train

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// Options are what a run needs besides its config.
type Options struct {
	Resume     bool // continue from the latest good checkpoint of run.dir; without one, start
	OpenDevice OpenDevice
	Execute    Executor // nil: runtime/exec
	// Tune chooses among the candidates of kernels; nil is the static choice. A resumed run keeps the choices that it
	// began with.
	Tune   *tune.Cache
	Report Report // nil: Silent
}

// Result is how a run ended.
type Result struct {
	Dir            string   `json:"dir"`
	Step           int      `json:"step"`
	Checkpoint     string   `json:"checkpoint"`
	Interrupted    bool     `json:"interrupted,omitempty"`
	Loss           *float64 `json:"loss,omitempty"`     // of the last step
	ValLoss        *float64 `json:"val_loss,omitempty"` // nats per token
	UnigramEntropy float64  `json:"unigram_entropy"`    // of the held-out text, nats per token
	Plot           string   `json:"plot,omitempty"`
}

// Run trains. When ctx ends it finishes the step under way, saves, and returns with Interrupted set. Everything that can be
// wrong with the input is found before anything is written; such errors are UserErrors.
func Run(ctx context.Context, c Config, o Options) (res Result, err error) {
	if o.Report == nil {
		o.Report = Silent{}
	}
	r := &run{Config: c, Options: o, result: Result{Dir: c.Run.Dir}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.openData(ctx); err != nil {
		return r.result, err
	}
	for _, step := range []func() error{r.build, r.takeFolder, r.findWeights, r.plan, r.load, r.openFolder} {
		if err := step(); err != nil {
			return r.result, err
		}
	}
	r.start.Allocated, r.start.Staging = r.dev.Allocated()
	o.Report.Start(r.start)
	if err := r.loop(ctx); err != nil {
		return r.result, err
	}
	return r.result, r.finish()
}

// run is a training run under way.
type run struct {
	Config
	Options
	result Result
	start  Start

	data      *corpus
	weights   *weights // to start from
	optimizer *optim.Optimizer
	graphs    map[string]*graph.Graph
	dev       device.Device
	planned   Planned
	session   Session

	folder folder
	store  *checkpoint.Store
	log    *metrics.Log
	events *metrics.Events
	trace  *trace.Writer

	step    int // finished
	saved   int // step of the newest checkpoint of this run; −1: none
	pending []*inFlight
	pace    pace
}

// The programs of a run.
const (
	firstProgram  = "first"  // gradient of a batch's first microbatch
	nextProgram   = "next"   // of the others
	votesProgram  = "votes"  // the sums of squares of the gradient
	updateProgram = "update" // the optimizer
	evalProgram   = "eval"
)

// build makes the graphs.
func (r *run) build() (err error) {
	c, t := r.Model.Config, r.Train
	micro := t.BatchSize / t.Microbatches
	r.graphs = map[string]*graph.Graph{}
	if r.graphs[firstProgram], err = c.Grad(micro, t.Microbatches, false); err != nil {
		return err
	}
	if t.Microbatches > 1 {
		if r.graphs[nextProgram], err = c.Grad(micro, t.Microbatches, true); err != nil {
			return err
		}
	}
	if r.data.val != nil {
		if r.graphs[evalProgram], err = c.Eval(micro); err != nil {
			return err
		}
	}
	if r.optimizer, err = newOptimizer(r.Config); err != nil {
		return err
	}
	part := r.optimizer.All()
	if r.graphs[votesProgram], err = part.Votes(); err != nil {
		return err
	}
	r.graphs[updateProgram], err = part.Update(0)
	return err
}

// plan asks the device how the graphs fit.
func (r *run) plan() (err error) {
	if r.dev, err = openDevice(r.OpenDevice, r.Pipeline.Devices); err != nil {
		return err
	}
	execute := r.Execute
	if execute == nil {
		execute = Execute(chooser(r.Tune))
	}
	if r.planned, err = execute(r.dev, r.graphs); err != nil {
		return planError(r.dev, err)
	}
	r.start = Start{Config: string(r.YAML()), Device: r.dev.Info(), Parameters: r.Model.Count(), Memory: r.planned.Memory,
		Kernels: r.planned.Kernels, Optimizer: r.optimizer.String(), Data: r.data.sizes(), FirstStep: r.step, Steps: r.Train.Steps}
	return nil
}

// planError tells a model that is too large, which is the user's to mend, from a device that fails.
func planError(dev device.Device, err error) error {
	if errors.Is(err, exec.ErrTooLarge) || errors.Is(err, device.ErrOutOfMemory) {
		return mistakef("%s: %w", dev.Info().Name, err)
	}
	return err
}

// openDevice opens the first of the names, or the default when there is none.
func openDevice(open OpenDevice, names []string) (device.Device, error) {
	name := ""
	if len(names) > 0 {
		name = names[0]
	}
	dev, err := open(name)
	if err != nil {
		return nil, Mistake(err)
	}
	return dev, nil
}

// load brings the programs and the initial state to the device.
func (r *run) load() (err error) {
	if r.session, err = r.planned.Load(); errors.Is(err, device.ErrOutOfMemory) {
		err = Mistake(err)
	}
	if err != nil {
		return err
	}
	return r.weights.upload(r.session)
}

func (r *run) close() error {
	var errs []error
	if r.data != nil {
		errs = append(errs, r.data.close())
	}
	if r.session != nil {
		errs = append(errs, r.session.Close())
	}
	if r.dev != nil {
		errs = append(errs, r.dev.Close())
	}
	if r.log != nil {
		errs = append(errs, r.log.Close())
	}
	if r.events != nil {
		errs = append(errs, r.events.Close())
	}
	if r.trace != nil {
		errs = append(errs, r.trace.Close())
	}
	if r.weights != nil {
		errs = append(errs, r.weights.close())
	}
	r.folder.leave()
	return errors.Join(errs...)
}

// finish draws the loss over all steps, those before a resumption included.
func (r *run) finish() error {
	r.result.Step, r.result.UnigramEntropy = r.step, r.data.entropy
	if r.step == 0 {
		return nil
	}
	records, err := metrics.Read(filepath.Join(r.Run.Dir, metricsFile))
	if err != nil {
		return Mistake(err)
	}
	path := filepath.Join(r.Run.Dir, "loss.png")
	series := []metrics.Series{
		metrics.FromRecords(records, "loss", "training loss", metrics.Curve),
		metrics.FromRecords(records, "val_loss", "validation loss", metrics.Dots),
		{Name: "unigram entropy", Kind: metrics.Level, Y: []float64{r.data.entropy}},
	}
	if err := metrics.Plot(path, series...); err != nil {
		return Mistake(err)
	}
	r.result.Plot = path
	return nil
}
