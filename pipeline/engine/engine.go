package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/unitname"
	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Engine is a pipeline: planned by New, in memory after Load.
type Engine struct {
	options      Options
	ranks        []*rank
	exchanges    exchanges
	channels     channels
	buffers      wire.Pool       // of encoded payloads
	owners       []int           // the ranks of the first replica, which own the parameters
	backwards    backwards       // of the schedule
	stale        int             // of a batch's microbatches, in each replica
	tracer       Tracer          // nil: nothing is recorded
	profiler     Profiler        // nil: nothing is measured
	failure      *failure        // of a rank, or the cause of Abort
	parts        sync.WaitGroup  // of Begin
	stillRunning <-chan struct{} // closed when the ranks that still run after a failure have stopped
}

// backwards are the kinds of backwards that a schedule has: in one program, or with input and weight gradients in
// programs of their own. It may have both.
type backwards struct {
	whole, split bool
	postponed    bool // other actions stand between an input gradient and its weight gradients
}

// backwardsOf finds the kinds of backwards on all stages.
func backwardsOf(g *schedule.Generator, stages int) (b backwards) {
	for s := range stages {
		whole, split, postponed := schedule.Backwards(g.Actions(s))
		b = backwards{b.whole || whole, b.split || split, b.postponed || postponed}
	}
	return b
}

// Fault is an error of a rank, which its text names.
type Fault struct {
	Rank string // RankPlan.Name
	error
}

func (f *Fault) Unwrap() error { return f.error }

// New plans a pipeline and allocates nothing. An error that wraps exec.ErrTooLarge names the rank that does not fit.
func New(o Options) (*Engine, error) {
	if err := o.Layout.check(o.Model); err != nil {
		return nil, err
	}
	if err := o.Wire.check(); err != nil {
		return nil, err
	}
	if len(o.Devices) != o.Layout.ranks() {
		panic(fmt.Sprintf("engine: %d devices for %d ranks", len(o.Devices), o.Layout.ranks()))
	}
	if n := len(o.Optimizer.Losses()); n > 0 && n != o.Layout.Replicas {
		panic(fmt.Sprintf("engine: the optimizer sums %d losses, expected %d, one per replica", n, o.Layout.Replicas))
	}
	if o.Execute == nil {
		o.Execute = Execute(nil, 0)
	}
	if o.QueueDepth == 0 {
		o.QueueDepth = defaultQueueDepth
	}
	sample, err := o.Schedule(sampleBatches)
	if err != nil {
		return nil, err
	}
	if d := sample.Head().Delay; d != o.Layout.Delay {
		panic(fmt.Sprintf("engine: a schedule with delay %d for a layout with delay %d", d, o.Layout.Delay))
	}
	e := &Engine{options: o, stale: sample.Head().Stale, exchanges: o.planExchanges(), backwards: backwardsOf(sample, o.Layout.Stages),
		failure: newFailure()}
	for i, dev := range o.Devices {
		r := &rank{engine: e, index: i, device: dev}
		r.slots = schedule.Slots(sample.Actions(r.stage()))
		if err := r.prepare(); err != nil {
			return nil, &Fault{r.name(), fmt.Errorf("%s on %s: %w", r.name(), dev.Info().Name, err)}
		}
		e.ranks = append(e.ranks, r)
		if r.optimizer != nil {
			e.owners = append(e.owners, i)
		}
	}
	return e, nil
}

// local lists the ranks of this process.
func (e *Engine) local() []*rank {
	return slices.DeleteFunc(slices.Clone(e.ranks), func(r *rank) bool { return !r.local() })
}

// RankPlan describes a rank and its memory.
type RankPlan struct {
	Name    string      `json:"name"`
	Member  string      `json:"member,omitempty"` // the process that has the rank, if it is another one
	Device  device.Info `json:"device"`
	Units   [][2]int    `json:"units"` // by model chunk: the first unit, and the one after the last
	names   []string    // of its model chunks
	Slots   int         `json:"slots"`  // microbatches in flight
	Memory  exec.Memory `json:"memory"` // planned bytes
	Kernels int         `json:"kernels"`
	// Bytes of buffers once all are allocated, and of the device's staging.
	Allocated int64 `json:"allocated"`
	Staging   int64 `json:"staging"`
	Shared    int64 `json:"shared"` // bytes of host memory that it sends through and other devices import too
}

// Chunks names the units of the rank: "embed to layers.3.self_attn".
func (p RankPlan) Chunks() string { return strings.Join(p.names, ", ") }

// Ranks describes the ranks of this process.
func (e *Engine) Ranks() []RankPlan {
	var ps []RankPlan
	for _, r := range e.local() {
		ps = append(ps, e.Rank(r.index))
	}
	return ps
}

// Rank describes a rank. If it is in another process, only the name, the units and the slots are known.
func (e *Engine) Rank(index int) RankPlan {
	r := e.ranks[index]
	p := RankPlan{Name: r.name(), Slots: r.slots, Memory: r.planned.Memory, Kernels: r.planned.Kernels, Shared: e.channels.bytes(r.index)}
	if r.local() {
		p.Device = r.device.Info()
	}
	units := model.UnitNames(e.options.Model)
	for chunk := range e.options.Layout.Chunks {
		first, last := r.units(chunk)
		p.Units = append(p.Units, [2]int{first, last})
		p.names = append(p.names, unitname.Range(units, first, last))
	}
	return p
}

// Reads lists the variables of a batch that the ranks of this process read.
func (e *Engine) Reads() (names []string) {
	for _, r := range e.local() {
		for _, chunk := range r.reads {
			for _, v := range chunk {
				if !slices.Contains(names, v.ID) {
					names = append(names, v.ID)
				}
			}
		}
	}
	return names
}

// Load allocates all memory and compiles all kernels, on all devices in parallel. Weights and states are zero.
func (e *Engine) Load() error {
	local := e.local()
	errs := make([]error, len(local))
	var loading sync.WaitGroup
	for i, r := range local {
		loading.Go(func() {
			if err := r.load(); err != nil {
				errs[i] = r.fault(err)
			}
		})
	}
	loading.Wait()
	err := errors.Join(errs...)
	if err == nil {
		err = e.channels.connect(e)
	}
	if err != nil {
		return errors.Join(err, e.Close())
	}
	return nil
}

// SetTrace makes the engine record its events from now on. Nothing may be running.
func (e *Engine) SetTrace(t Tracer) { e.tracer = t }

// SetProfile makes the engine measure kernels from now on. Nothing may be running.
func (e *Engine) SetProfile(p Profiler) { e.profiler = p }

// Abort makes the work in progress and all later work fail with a cause, as a failing rank does. It may be called at
// any time.
func (e *Engine) Abort(cause error) { e.failure.set(cause) }

// Close waits for the devices, however long they take, and releases the memory of Load. A Part must have ended, or
// Abort must have been called.
func (e *Engine) Close() error {
	e.parts.Wait()
	if e.stillRunning != nil {
		<-e.stillRunning
	}
	var errs []error
	for _, r := range e.ranks {
		if r.session != nil {
			errs = append(errs, r.session.Close())
		}
		r.session = nil
	}
	e.channels.close()
	return errors.Join(errs...)
}

// Notes lists, after Load, the transfers that are slower for lack of memory.
func (e *Engine) Notes() (notes []string) {
	if e.channels.unshared > 0 {
		notes = append(notes, fmt.Sprintf("devices share at most a quarter of the host's memory, which lacks room for %s of staging buffers: "+
			"transfers without one take the slower path through the memory of each device", units.Bytes(e.channels.unshared)))
	}
	return notes
}

// Untuned lists, by device, where kernels other than those chosen by timing run, for lack of memory.
func (e *Engine) Untuned() (notes []string) {
	var devices []string
	untuned := map[string][]*rank{}
	for _, r := range e.local() {
		if name := r.device.Info().Name; r.planned.Untuned != nil {
			if untuned[name] == nil {
				devices = append(devices, name)
			}
			untuned[name] = append(untuned[name], r)
		}
	}
	for _, name := range devices {
		notes = append(notes, fmt.Sprintf("%s: %s", name, scarce(untuned[name])))
	}
	return notes
}

// scarce explains why ranks of one device cannot use the fastest kernels.
func scarce(ranks []*rank) string {
	var names []string
	missing := int64(0)
	for _, r := range ranks {
		names = append(names, r.name())
		if s := (*exec.Shortage)(nil); errors.As(r.planned.Untuned, &s) {
			missing = max(missing, s.Needed.Total-s.Available)
		}
	}
	why := fmt.Sprintf("need %s more of memory than available", units.Bytes(missing))
	if missing == 0 { // one array is too large, and not the whole
		why = fmt.Sprintf("do not fit: %v", ranks[0].planned.Untuned)
	}
	return fmt.Sprintf("the fastest kernels %s (%s)", why, strings.Join(names, ", "))
}
