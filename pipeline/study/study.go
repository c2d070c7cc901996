package study

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// Train performs one training run. Commands use train.Run; tests use others.
type Train func(context.Context, config.Config, train.Options) (train.Result, error)

// Options configure the execution of a study.
type Options struct {
	Jobs       int // runs at a time; 0: one
	OpenDevice layout.OpenDevice
	OpenWorker train.OpenWorker // see train.Options
	Train      Train            // nil: train.Run
	Progress   func(Progress)   // from one goroutine; nil: none
	Note       func(format string, args ...any)
}

// Progress is how far a study is.
type Progress struct {
	Done, Total int
	AtMost      bool          // Total is an upper bound: some learning rates are not chosen yet
	Running     []string      // "adamw, sync, lr 0.001, seed 1: step 7/300"
	Left        time.Duration // estimated; 0: not known
	Ended       *Ended        // a run that has just ended; nil: none
}

// Ended is a run that has ended.
type Ended struct {
	Run
	ValLoss  *float64 `json:"val_loss"`           // nats per token; nil: the run diverged
	Diverged string   `json:"diverged,omitempty"` // the error of a run that diverged
	Dir      string   `json:"dir"`
}

func (g *Grid) ended(r Run, o outcome) Ended {
	return Ended{r, number(o.loss), o.diverged, g.Folder(r)}
}

// ErrInterrupted is the error of a study whose context ended first. Its runs are kept, and the next Execute continues
// them.
var ErrInterrupted = errors.New("the study was interrupted")

// Execute trains all runs that have not ended yet, several at a time, and then writes the report into the grid's
// folder. A run that was interrupted continues from its checkpoint. A run that diverges has an infinite loss. Any other
// failure stops the study, after the runs in progress have saved.
func Execute(ctx context.Context, g *Grid, o Options) (*Report, error) {
	if o.Train == nil {
		o.Train = train.Run
	}
	release, err := g.takeFolder(o)
	if err != nil {
		return nil, err
	}
	defer release()
	x := &execution{grid: g, options: o, outcomes: map[Run]outcome{}, examined: map[Run]bool{}, running: map[Run]*steps{},
		messages: make(chan message), began: time.Now()}
	if err := x.loop(ctx); err != nil {
		return nil, err
	}
	rep := newReport(g, x.outcomes)
	return rep, rep.write(g)
}

// takeFolder creates the study's folder and locks it.
func (g *Grid) takeFolder(o Options) (release func(), err error) {
	made := atomicfile.MissingFolders(g.Dir)
	if err := os.MkdirAll(filepath.Join(g.Dir, "runs"), 0o777); err != nil {
		return nil, usererror.New(fmt.Errorf("dir: %w", err))
	}
	unlock, err := lock.Folder(g.Dir)
	if errors.Is(err, lock.ErrUnsupported) {
		if o.Note != nil {
			o.Note("dir: %v", err)
		}
		unlock = func() {}
	} else if err != nil {
		return nil, usererror.New(fmt.Errorf("dir: %w", err))
	}
	return func() {
		unlock()
		os.Remove(filepath.Join(g.Dir, "runs")) // only if it is empty: a study that did not begin leaves nothing behind
		for _, dir := range made {
			os.Remove(dir)
		}
	}, nil
}

// execution is a study in progress. One goroutine owns it; runs send it messages.
type execution struct {
	grid     *Grid
	options  Options
	outcomes map[Run]outcome
	examined map[Run]bool // runs whose folder was searched for an earlier outcome
	running  map[Run]*steps
	messages chan message

	began  time.Time
	gained float64 // steps since then, in runs
}

// steps is the progress of a run.
type steps struct{ done, of int }

func (s steps) share() float64 {
	if s.of == 0 {
		return 0
	}
	return float64(s.done) / float64(s.of)
}

// message reports that a run began, progressed or ended.
type message struct {
	run   Run
	steps steps
	began bool // at steps
	end   *end
}

type end struct {
	result train.Result
	err    error
}

// reporter sends a run's progress to the study.
type reporter struct {
	train.Silent
	run Run
	to  chan<- message
}

func (t reporter) Start(s train.Start) {
	t.to <- message{run: t.run, steps: steps{s.FirstStep, s.Steps}, began: true}
}
func (t reporter) Step(p train.Progress) {
	t.to <- message{run: t.run, steps: steps{p.Step, p.Steps}}
}

// loop runs until all is done, the context ends, or a run fails.
func (x *execution) loop(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failure error
	for {
		waiting, err := x.waiting()
		if failure == nil {
			failure = err
		}
		for failure == nil && ctx.Err() == nil && len(waiting) > 0 && len(x.running) < max(1, x.options.Jobs) {
			failure = x.start(ctx, waiting[0])
			waiting = waiting[1:]
		}
		if failure != nil {
			cancel()
		}
		if len(x.running) == 0 {
			break
		}
		ended, err := x.take(ctx, <-x.messages)
		if failure == nil {
			failure = err
		}
		x.report(ended)
	}
	if failure == nil && ctx.Err() != nil {
		if needed, later := x.grid.plan(x.outcomes); later > 0 || x.done(needed) < len(needed) {
			return ErrInterrupted
		}
	}
	return failure
}

// waiting lists the runs that are known to be needed, and have neither ended nor begun.
func (x *execution) waiting() (rs []Run, err error) {
	needed, err := x.grid.recall(x.outcomes, x.examined)
	return slices.DeleteFunc(needed, func(r Run) bool {
		_, ended := x.outcomes[r]
		return ended || x.running[r] != nil
	}), err
}

// recall adds the outcomes of earlier executions, and returns all runs that are known to be needed. An outcome may make
// more runs known, so it repeats until there is no new one.
func (g *Grid) recall(outcomes map[Run]outcome, examined map[Run]bool) (needed []Run, err error) {
	for found := true; found; {
		found = false
		needed, _ = g.plan(outcomes)
		for _, r := range needed {
			if examined[r] {
				continue
			}
			examined[r] = true
			o, ended, err := kept(g, r)
			if err != nil {
				return nil, err
			}
			if ended {
				outcomes[r], found = o, true
			}
		}
	}
	return needed, nil
}

// start begins a run.
func (x *execution) start(ctx context.Context, r Run) error {
	c, err := x.grid.Config(r)
	if err != nil {
		return err
	}
	x.running[r] = &steps{}
	o := train.Options{Resume: true, OpenDevice: x.options.OpenDevice, OpenWorker: x.options.OpenWorker, Concurrent: x.options.Jobs,
		Report: reporter{run: r, to: x.messages}}
	go func() {
		res, err := x.options.Train(ctx, c, o)
		x.messages <- message{run: r, end: &end{res, err}}
	}()
	return nil
}

// take handles a message. It returns the run if the message ends it.
func (x *execution) take(ctx context.Context, m message) (*Ended, error) {
	at := x.running[m.run]
	if m.end == nil {
		if !m.began {
			x.gained += m.steps.share() - at.share()
		}
		*at = m.steps
		return nil, nil
	}
	delete(x.running, m.run)
	o, interrupted, err := m.end.outcome(ctx)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s (%s): %w", m.run, x.grid.Folder(m.run), err)
	case interrupted:
		return nil, nil
	}
	x.gained += 1 - at.share()
	x.outcomes[m.run] = o
	ended := x.grid.ended(m.run, o)
	return &ended, keep(x.grid.Folder(m.run), o)
}

// outcome returns how a run ended, or that it was interrupted and will continue in the next execution.
func (e *end) outcome(ctx context.Context) (o outcome, interrupted bool, err error) {
	switch {
	case errors.Is(e.err, train.ErrDiverged):
		return outcome{math.Inf(1), e.err.Error()}, false, nil
	case e.err != nil && ctx.Err() != nil && errors.Is(e.err, context.Canceled):
		return o, true, nil
	case e.err != nil:
		return o, false, e.err
	case e.result.Interrupted:
		return o, true, nil
	case e.result.ValLoss == nil:
		return o, false, errors.New("the run ended without a validation loss")
	}
	return outcome{*e.result.ValLoss, ""}, false, nil
}

func (x *execution) done(needed []Run) (n int) {
	for _, r := range needed {
		if _, ok := x.outcomes[r]; ok {
			n++
		}
	}
	return n
}

// report reports the progress of the study.
func (x *execution) report(ended *Ended) {
	if x.options.Progress == nil {
		return
	}
	needed, later := x.grid.plan(x.outcomes)
	p := Progress{Done: x.done(needed), Total: len(needed) + later, AtMost: later > 0, Ended: ended}
	left := float64(p.Total - p.Done)
	for _, r := range needed {
		if s := x.running[r]; s != nil {
			left -= s.share()
			p.Running = append(p.Running, fmt.Sprintf("%s: step %d/%d", r, s.done, s.of))
		}
	}
	if x.gained > 0 {
		p.Left = time.Duration(float64(time.Since(x.began)) * left / x.gained)
	}
	x.options.Progress(p)
}

// Planned is the remaining work of a study.
type Planned struct {
	Ended   []Ended `json:"ended"`
	Waiting []Run   `json:"waiting"`
	Later   int     `json:"later"` // an upper bound of further runs, at learning rates that the waiting runs decide
}

// Plan returns what Execute would do. It trains nothing and writes nothing.
func Plan(g *Grid) (p Planned, err error) {
	outcomes := map[Run]outcome{}
	needed, err := g.recall(outcomes, map[Run]bool{})
	if err != nil {
		return p, err
	}
	_, p.Later = g.plan(outcomes)
	for _, r := range needed {
		if o, ok := outcomes[r]; ok {
			p.Ended = append(p.Ended, g.ended(r, o))
		} else {
			p.Waiting = append(p.Waiting, r)
		}
	}
	return p, nil
}
