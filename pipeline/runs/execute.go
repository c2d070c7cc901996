package runs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
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

// Options configure the execution of a set.
type Options struct {
	Jobs       int      // runs at a time on each device; 0: one
	Devices    []string // names of devices, each of which computes whole runs; nil: the devices of the configs
	OpenDevice layout.OpenDevice
	OpenWorker train.OpenWorker // see train.Options
	Train      Train            // nil: train.Run
	Saves      *atomic.Int64    // see train.Options; all runs in progress save
	Note       func(format string, args ...any)
}

// slots is the number of runs at a time.
func (o Options) slots() int { return max(1, o.Jobs) * max(1, len(o.Devices)) }

// Progress is how far a set is.
type Progress[R Run] struct {
	Done, Total int
	AtMost      bool          // Total is an upper bound: some runs are not known yet
	Running     []string      // "adamw, sync, lr 0.001, seed 1: step 7/300"
	Left        time.Duration // estimated; 0: not known
	Ended       *Ended[R]     // a run that has just ended; nil: none
	Outcomes    map[R]Outcome // so far; only to read, and only during the call
}

// ErrInterrupted is the error of a set whose context ended first. Its runs are kept, and the next Compare continues
// them.
var ErrInterrupted = errors.New("the runs were interrupted")

// takeFolder creates the folder of a set and locks it. release unlocks it, and removes it if it is empty.
func takeFolder(dir string, note func(format string, args ...any)) (release func(), err error) {
	if err := atomicfile.CheckName(dir); err != nil {
		return nil, usererror.Errorf("dir: %w", err)
	}
	made := atomicfile.MissingFolders(dir)
	if err := os.MkdirAll(filepath.Join(dir, "runs"), 0o777); err != nil {
		return nil, usererror.Errorf("dir: %w", err)
	}
	unlock, err := lock.Folder(dir)
	if errors.Is(err, lock.ErrUnsupported) {
		if note != nil {
			note("dir: %v", err)
		}
		unlock = func() {}
	} else if err != nil {
		return nil, usererror.Errorf("dir: %w", err)
	}
	return func() {
		unlock()
		os.Remove(filepath.Join(dir, "runs")) // only if it is empty: a set that did not begin leaves nothing behind
		for _, dir := range made {
			os.Remove(dir)
		}
	}, nil
}

// execute trains all runs that have not ended yet, several at a time, and returns the outcomes of all. A run that was
// interrupted continues from its checkpoint. A run that diverges has an infinite loss. Any other failure stops the set
// after the runs in progress have saved, unless the set keeps going. The caller holds the set's folder. progress is
// called from one goroutine; nil: not at all.
func execute[R Run](ctx context.Context, s Set[R], o Options, progress func(Progress[R])) (map[R]Outcome, error) {
	if o.Train == nil {
		o.Train = train.Run
	}
	x := &execution[R]{set: &s, options: o, progress: progress, outcomes: map[R]Outcome{}, examined: map[R]bool{}, running: map[R]*job{},
		messages: make(chan message[R]), began: time.Now()}
	for slot := range o.slots() {
		x.free = append(x.free, slot)
	}
	err := x.loop(ctx)
	return x.outcomes, err
}

// execution is a set in progress. One goroutine owns it; runs send it messages.
type execution[R Run] struct {
	set      *Set[R]
	options  Options
	progress func(Progress[R])
	outcomes map[R]Outcome
	examined map[R]bool // runs whose folder was searched for an earlier outcome
	plan     plan[R]
	running  map[R]*job
	free     []int // slots without a run, ascending
	messages chan message[R]
	kept     bool // the set's folder records how it is begun

	began  time.Time
	gained float64 // costs of steps since then
}

// plan is what remains of a set. It changes only when a run ends.
type plan[R Run] struct {
	needed int     // runs that are known to be needed
	open   []R     // runs that have not ended, in the order in which they are begun
	cost   float64 // of open and later
	later  Later
}

// job is a run in progress.
type job struct {
	slot   int
	device string // "": the config's
	steps  steps
}

// steps is the progress of a run, which begins after the step from.
type steps struct{ from, done, of int }

func (s steps) share() float64 {
	if s.of <= s.from {
		return 0
	}
	return min(1, max(0, float64(s.done-s.from)/float64(s.of-s.from)))
}

// message reports that a run began, progressed or ended.
type message[R Run] struct {
	run   R
	steps steps
	began bool // at steps
	end   *end
}

// reporter sends a run's progress to the execution.
type reporter[R Run] struct {
	train.Silent
	run      R
	from, to int
	messages chan<- message[R]
}

func (t reporter[R]) Start(s train.Start) {
	t.messages <- message[R]{run: t.run, steps: t.steps(s.FirstStep, s.Steps), began: true}
}

func (t reporter[R]) Step(p train.Progress) {
	t.messages <- message[R]{run: t.run, steps: t.steps(p.Step, p.Steps)}
}

func (t reporter[R]) steps(done, of int) steps {
	if t.to > 0 {
		of = min(t.to, of)
	}
	return steps{t.from, done, of}
}

// loop runs until all is done, the context ends, or a run fails.
func (x *execution[R]) loop(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failure := x.replan()
	for {
		for _, r := range x.plan.open {
			if failure != nil || ctx.Err() != nil || len(x.free) == 0 {
				break
			}
			if x.running[r] == nil {
				failure = x.start(ctx, r)
			}
		}
		if failure != nil {
			cancel()
		}
		if len(x.running) == 0 {
			break
		}
		ended, err := x.take(ctx, <-x.messages)
		if ended != nil {
			err = errors.Join(err, x.replan())
		}
		if failure == nil {
			failure = err
		}
		x.report(ended)
	}
	if failure == nil && ctx.Err() != nil && len(x.plan.open)+x.plan.later.Runs > 0 {
		return ErrInterrupted
	}
	return failure
}

// replan finds the outcomes of earlier executions and plans what remains.
func (x *execution[R]) replan() error {
	needed, later, err := x.set.recall(x.outcomes, x.examined)
	x.plan = plan[R]{needed: len(needed), later: later, cost: later.Cost}
	for _, r := range needed {
		if _, ended := x.outcomes[r]; !ended {
			x.plan.open = append(x.plan.open, r)
			x.plan.cost += x.set.cost(r)
		}
	}
	return err
}

// start begins a run in the first free slot.
func (x *execution[R]) start(ctx context.Context, r R) error {
	c, err := x.set.Config(r)
	if err != nil {
		return err
	}
	j := &job{slot: x.free[0]}
	from, to := x.set.span(r)
	o := train.Options{Resume: true, StopAfter: to, Plots: true,
		Devices: train.DeviceOptions{Open: x.options.OpenDevice, OpenWorker: x.options.OpenWorker, Concurrent: max(1, x.options.Jobs)},
		Saves:   x.options.Saves, Report: reporter[R]{run: r, from: from, to: to, messages: x.messages}}
	if names := x.options.Devices; len(names) > 0 {
		j.device = names[j.slot%len(names)]
		c.Pipeline.Devices = []string{j.device}
	}
	x.free, x.running[r] = x.free[1:], j
	go func() {
		res, err := x.options.Train(ctx, c, o)
		x.messages <- message[R]{run: r, end: &end{res, err}}
	}()
	return nil
}

// take handles a message. It returns the run if the message ends it.
func (x *execution[R]) take(ctx context.Context, m message[R]) (*Ended[R], error) {
	j := x.running[m.run]
	cost := x.set.cost(m.run)
	if m.end == nil {
		if !m.began {
			x.gained += cost * (m.steps.share() - j.steps.share())
		}
		j.steps = m.steps
		return nil, x.keepFile()
	}
	delete(x.running, m.run)
	x.free = append(x.free, j.slot)
	slices.Sort(x.free)
	o, interrupted, err := x.set.outcome(ctx, m.run, *m.end)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s (%s): %w", m.run, x.set.Folder(m.run), err)
	case interrupted:
		return nil, nil
	}
	x.gained += cost * (1 - j.steps.share())
	x.outcomes[m.run] = o
	return &Ended[R]{m.run, o}, x.set.keep(m.run, o)
}

// keepFile records, once a run has begun, where the set was begun.
func (x *execution[R]) keepFile() error {
	if x.kept {
		return nil
	}
	x.kept = true
	return x.set.File.keep(x.set.Dir)
}

// report reports the progress of the set.
func (x *execution[R]) report(ended *Ended[R]) {
	if x.progress == nil {
		return
	}
	p := Progress[R]{Done: x.plan.needed - len(x.plan.open), Total: x.plan.needed + x.plan.later.Runs, AtMost: x.plan.later.Runs > 0,
		Ended: ended, Outcomes: x.outcomes}
	left := x.plan.cost
	for _, r := range x.plan.open {
		if len(p.Running) == len(x.running) {
			break
		}
		if j := x.running[r]; j != nil {
			left -= x.set.cost(r) * j.steps.share()
			text := fmt.Sprintf("%s: step %d/%d", r, j.steps.done, j.steps.of)
			if len(x.options.Devices) > 1 {
				text += " on " + j.device
			}
			p.Running = append(p.Running, text)
		}
	}
	if x.gained > 0 {
		p.Left = time.Duration(float64(time.Since(x.began)) * left / x.gained)
	}
	x.progress(p)
}
