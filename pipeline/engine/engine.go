package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Engine is a pipeline, planned by New and in memory after Load.
type Engine struct {
	Options
	ranks        []*rank
	exchanges    []exchange
	routes       map[way]*route
	room         int64           // bytes of the host's memory that further blocks may take
	unshared     int64           // bytes of the blocks that there was no room for
	owners       []int           // lines of the first replica
	whole, split bool            // which backwards there are: one program, or two halves; a schedule may have both
	postponed    bool            // the second half does not always follow the first
	aborted      context.Context // ends when nothing is wanted any more
	abort        context.CancelCauseFunc
	failure      error           // of a line: the state of all is lost
	stillRunning <-chan struct{} // closed when lines that did not come to rest after a failure do
}

// Fault is what went wrong on a line, which its text names.
type Fault struct {
	Rank string // as LinePlan.Name has it
	error
}

func (f *Fault) Unwrap() error { return f.error }

// fault is an error of the line's own.
func (l *rank) fault(err error) error { return &Fault{l.name(), fmt.Errorf("%s: %w", l.name(), err)} }

// New plans a pipeline and allocates nothing. Errors that wrap exec.ErrTooLarge name the line that does not fit.
func New(o Options) (*Engine, error) {
	if err := o.check(o.Model); err != nil {
		return nil, err
	}
	if len(o.Devices) != o.ranks() {
		panic(fmt.Sprintf("engine: %d devices for %d lines", len(o.Devices), o.ranks()))
	}
	if n := len(o.Optimizer.Losses()); n > 0 && n != o.Replicas {
		panic(fmt.Sprintf("engine: the optimizer adds up %d losses, there are %d replicas", n, o.Replicas))
	}
	if o.Execute == nil {
		o.Execute = Execute(nil, 0)
	}
	if o.Depth == 0 {
		o.Depth = defaultDepth
	}
	e := &Engine{Options: o, exchanges: o.planExchanges()}
	e.aborted, e.abort = context.WithCancelCause(context.Background())
	sample, err := o.Schedule(sampleBatches)
	if err != nil {
		return nil, err
	}
	for s := range o.Stages {
		whole, split, postponed := schedule.Backwards(sample.Actions(s))
		e.whole, e.split, e.postponed = e.whole || whole, e.split || split, e.postponed || postponed
	}
	for i, dev := range o.Devices {
		l := &rank{e: e, index: i, stage: i % o.Stages, replica: i / o.Stages, dev: dev}
		l.slots = schedule.Slots(sample.Actions(l.stage))
		if err := l.prepare(); err != nil {
			return nil, &Fault{l.name(), fmt.Errorf("%s on %s: %w", l.name(), dev.Info().Name, err)}
		}
		e.ranks = append(e.ranks, l)
		if l.optimizer != nil {
			e.owners = append(e.owners, i)
		}
	}
	return e, nil
}

func (l Layout) recompute(stage int) bool { return len(l.Recompute) > 0 && l.Recompute[stage] }

// RankPlan is what a line holds and takes.
type RankPlan struct {
	Name    string      `json:"name"`
	Device  device.Info `json:"device"`
	Units   [][2]int    `json:"units"` // of its parts: the first, and the one after the last
	names   []string    // of its parts
	Slots   int         `json:"slots"`  // microbatches in flight
	Memory  exec.Memory `json:"memory"` // planned bytes
	Kernels int         `json:"kernels"`
	// Bytes of buffers, measured when all are made, and what transfers use besides.
	Allocated int64 `json:"allocated"`
	Staging   int64 `json:"staging"`
	Shared    int64 `json:"shared"` // bytes of the host's memory that it sends through and other devices import too
}

// Chunks names the units of a line: "embed to layers.3".
func (p RankPlan) Chunks() string { return strings.Join(p.names, ", ") }

func chunkName(m model.Model, first, last int) string {
	if last-first == 1 {
		return m.UnitScope(first)
	}
	return m.UnitScope(first) + " to " + m.UnitScope(last-1)
}

// Ranks describes the lines.
func (e *Engine) Ranks() []RankPlan {
	var ps []RankPlan
	for _, l := range e.ranks {
		p := RankPlan{Name: l.name(), Device: l.dev.Info(), Slots: l.slots, Memory: l.planned.Memory, Kernels: l.planned.Kernels,
			Shared: e.shared(l)}
		for chunk := range e.Chunks {
			first, last := e.units(chunk*e.Stages+l.stage, e.Model)
			p.Units = append(p.Units, [2]int{first, last})
			p.names = append(p.names, chunkName(e.Model, first, last))
		}
		ps = append(ps, p)
	}
	return ps
}

// Load allocates all memory and compiles all kernels, on all devices at a time. Weights and states are zero.
func (e *Engine) Load() error {
	errs := make([]error, len(e.ranks))
	var loading sync.WaitGroup
	for i, l := range e.ranks {
		loading.Go(func() {
			if err := l.load(); err != nil {
				errs[i] = l.fault(err)
			}
		})
	}
	loading.Wait()
	err := errors.Join(errs...)
	if err == nil {
		err = e.connect()
	}
	if err != nil {
		return errors.Join(err, e.Close())
	}
	return nil
}

// Abort has what is under way fail for that cause, as a line that fails has, and all that comes later. It may be called at any time.
func (e *Engine) Abort(cause error) { e.abort(cause) }

// Close waits for the devices, however long they take, and releases what Load allocated.
func (e *Engine) Close() error {
	if e.stillRunning != nil {
		<-e.stillRunning
	}
	var errs []error
	for _, l := range e.ranks {
		if l.session != nil {
			errs = append(errs, l.session.Close())
		}
		l.session = nil
	}
	e.disconnect()
	return errors.Join(errs...)
}

// machine is the stage machine of a line for the batches from a number on to before another.
func (l *rank) machine(w work, from, to int) (*stage.Machine, error) {
	e := l.e
	g, err := w.schedule(to - from)
	if err != nil {
		return nil, err
	}
	if g, err = g.Communicate(schedule.Links{Tied: e.Model.Tied(), Replica: l.replica > 0, Copied: l.replica == 0 && e.Replicas > 1}); err != nil {
		return nil, err
	}
	c := stage.Config{Stage: l.stage, Stages: e.Stages, Replica: l.replica, Chunks: e.Chunks, Microbatches: w.microbatches,
		Delay: e.Delay, Slots: l.slots, Depth: e.Depth, Actions: g.Actions(l.stage), From: from, Roles: l.roles}
	if w.evaluates {
		c.Delay, c.Roles.Next = 0, c.Roles.Current
	} else {
		c.FeedAll = e.Inputs.Segments
	}
	if l.optimizer != nil && len(e.owners) > 1 {
		c.Owners = e.owners
	}
	for _, x := range e.exchanges {
		if x.from == l.index {
			c.CopiesFrom = append(c.CopiesFrom, x.to)
		}
		if x.to == l.index {
			c.CopiesTo = append(c.CopiesTo, x.from)
		}
	}
	return stage.New(c)
}
