package replicas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Options describe replicas.
type Options struct {
	Model     model.Model
	Optimizer *optim.Optimizer // of each replica
	Outer     outer.Config
	Period    int // steps between two exchanges of a fragment
	Late      int // steps from sending a fragment to landing its exchange, at most Period
	Last      int // the last step of the run
	Engines   []*engine.Engine
	Devices   []device.Device // the first of each replica, which computes its share of exchanges
	Execute   engine.Executor // of exchanges
}

// Pipeline is replicas that seldom talk. It has the methods of engine.Engine that a run needs.
type Pipeline struct {
	options   Options
	config    outer.Config
	plan      schedule.Exchanges
	fragments []fragment
	replicas  []*replica
	tracer    engine.Tracer // nil: nothing is recorded
	// By fragment:
	outer, momentum, base [][]byte
	flights               map[int]int // the step at which a fragment lands that was sent
}

// replica is one of the replicas.
type replica struct {
	engine  *engine.Engine
	machine *machine
	// By fragment:
	residue [][]byte // nil: messages are exact
	sent    [][]byte // nil: nothing that has not landed
}

// New makes a Pipeline of engines, which it closes.
func New(o Options) *Pipeline {
	p := &Pipeline{options: o, config: o.Outer, fragments: fragmentsOf(o.Model), flights: map[int]int{}}
	p.plan = schedule.Exchanges{Fragments: len(p.fragments), Period: o.Period, Late: o.Late, Last: o.Last}
	for _, f := range p.fragments {
		p.outer, p.momentum, p.base = append(p.outer, f.zeros()), append(p.momentum, f.zeros()), append(p.base, f.zeros())
	}
	for _, e := range o.Engines {
		r := &replica{engine: e, sent: make([][]byte, len(p.fragments)), residue: make([][]byte, len(p.fragments))}
		for i, f := range p.fragments {
			if !p.config.Exact() {
				r.residue[i] = f.zeros()
			}
		}
		p.replicas = append(p.replicas, r)
	}
	return p
}

// Load allocates all memory and compiles all kernels. Weights and states are zero.
func (p *Pipeline) Load() error {
	for i, r := range p.replicas {
		if err := r.engine.Load(); err != nil {
			return errors.Join(err, p.Close())
		}
		var err error
		if r.machine, err = newMachine(p.config, p.options.Devices[i], p.options.Execute, p.fragments, i == 0); err != nil {
			return errors.Join(fmt.Errorf("exchanges of replica %d: %w", i, err), p.Close())
		}
	}
	return nil
}

// Ranks describes the ranks of all replicas.
func (p *Pipeline) Ranks() (ranks []engine.RankPlan) {
	for _, r := range p.replicas {
		ranks = append(ranks, r.engine.Ranks()...)
	}
	return ranks
}

// Notes lists the notes of all replicas.
func (p *Pipeline) Notes() (notes []string) {
	for _, r := range p.replicas {
		for _, n := range r.engine.Notes() {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	return notes
}

// SetTrace makes the engines record their events from now on, and the pipeline its exchanges.
func (p *Pipeline) SetTrace(t engine.Tracer) {
	p.tracer = t
	for _, r := range p.replicas {
		r.engine.SetTrace(t)
	}
}

// SetProfile makes the engines measure kernels from now on.
func (p *Pipeline) SetProfile(profiler engine.Profiler) {
	first := 0
	for _, r := range p.replicas {
		if profiler == nil {
			r.engine.SetProfile(nil)
			continue
		}
		r.engine.SetProfile(rankProfiler{profiler, first})
		first += len(r.engine.Ranks())
	}
}

// rankProfiler is the Profiler of a replica, whose ranks count from its first one.
type rankProfiler struct {
	engine.Profiler
	first int
}

// Ran implements engine.Profiler.
func (p rankProfiler) Ran(rank, batch int, what string, kernels []exec.KernelInfo, t exec.Times) {
	p.Profiler.Ran(p.first+rank, batch, what, kernels, t)
}

// Untimed implements engine.Profiler.
func (p rankProfiler) Untimed(rank int, err error) { p.Profiler.Untimed(p.first+rank, err) }

// Abort makes the work in progress and all later work fail with a cause.
func (p *Pipeline) Abort(cause error) {
	for _, r := range p.replicas {
		r.engine.Abort(cause)
	}
}

// Close waits for the devices and releases the memory of Load.
func (p *Pipeline) Close() error {
	var errs []error
	for _, r := range p.replicas {
		errs = append(errs, r.engine.Close())
		if r.machine != nil {
			errs = append(errs, r.machine.session.Close())
		}
		r.machine = nil
	}
	return errors.Join(errs...)
}

// Train trains all replicas on their shares of the batches from (included) to to (excluded), as engine.Engine.Train does.
// Replicas end with the same batch.
func (p *Pipeline) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	for from < to && stop.Err() == nil {
		until := p.next(from, to)
		reached, failed, refused := p.train(stop, source, from, until, each)
		if failed == nil && reached > from {
			failed = p.exchange(reached)
		}
		if from = reached; failed != nil || refused != nil || reached < until {
			return from, errors.Join(failed, refused)
		}
	}
	return from, nil
}

// firstOrFaults joins errors of replicas: all that are faults of ranks, or else the first.
func firstOrFaults(errs []error) (first error) {
	var faults []error
	for _, err := range errs {
		if f := (*engine.Fault)(nil); errors.As(err, &f) {
			faults = append(faults, err)
		}
		if first == nil {
			first = err
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	return first
}

// train trains all replicas between two exchanges. It returns the first batch that was not done, the error of an engine that
// has failed, and the error of each or of the source.
func (p *Pipeline) train(stop context.Context, source engine.Source, from, to int,
	each func(engine.Measured) error) (reached int, failed, refused error) {
	stop, cancel := context.WithCancel(stop)
	defer cancel()
	measured := make([]chan engine.Measured, len(p.replicas))
	for i := range measured {
		measured[i] = make(chan engine.Measured, to-from)
	}
	ended := make(chan struct{})
	var noBatch error
	go func() {
		defer close(ended)
		reached, failed, noBatch = p.together(stop, source, from, to, measured)
		for _, c := range measured {
			close(c)
		}
	}()
	for {
		m, ok := combined(measured)
		if !ok {
			break
		}
		if refused == nil {
			if refused = each(m); refused != nil {
				cancel()
			}
		}
	}
	<-ended
	return reached, failed, errors.Join(noBatch, refused)
}

// together runs all engines, each on its own devices, up to the same batch. It returns the first batch that was not done, the
// error of an engine that has failed, and the error that ended the work early, of a source that has no further batch.
func (p *Pipeline) together(stop context.Context, source engine.Source, from, to int,
	measured []chan engine.Measured) (reached int, failed, refused error) {
	stop, cancel := context.WithCancel(stop)
	defer cancel()
	ends := slices.Repeat([]int{from}, len(p.replicas))
	run := func(stop context.Context, to int) error {
		var running sync.WaitGroup
		errs := make([]error, len(p.replicas))
		for i, r := range p.replicas {
			running.Go(func() {
				ends[i], errs[i] = r.engine.Train(stop, share{source, i, len(p.replicas)}, ends[i], to, func(m engine.Measured) error {
					measured[i] <- m
					return nil
				})
				if errs[i] != nil {
					cancel()
				}
			})
		}
		running.Wait()
		return firstOrFaults(errs)
	}
	refused = run(stop, to)
	most := slices.Max(ends) // others were stopped earlier
	if failed = run(context.WithoutCancel(stop), most); failed != nil {
		return most, failed, nil // refused is of the same failure
	}
	return most, nil, refused
}

// Evaluate evaluates the outer weights on the first replica, whose own weights are put back afterwards.
func (p *Pipeline) Evaluate(stop context.Context, source engine.Source, batches int, each func(engine.Measured) error) error {
	r, v := p.replicas[0], p.Evaluated()
	own := make([][]byte, len(p.fragments))
	for f, fragment := range p.fragments {
		own[f] = fragment.zeros()
		if err := r.readInto(own[f], fragment, v); err != nil {
			return err
		}
	}
	if err := r.writeAll(p.fragments, p.outer, v); err != nil {
		return err
	}
	err := r.engine.Evaluate(stop, source, batches, each)
	return errors.Join(err, r.writeAll(p.fragments, own, v))
}

// writeAll writes a version of all weights.
func (r *replica) writeAll(fragments []fragment, matrices [][]byte, v engine.Version) error {
	for f, fragment := range fragments {
		if err := r.writeVersion(fragment, matrices[f], v); err != nil {
			return err
		}
	}
	return nil
}

// share is a replica's share of the batches of a source.
type share struct {
	source          engine.Source
	replica, shares int
}

// Prepare implements engine.Preparer.
func (s share) Prepare(number int64) error {
	if p, ok := s.source.(engine.Preparer); ok {
		return p.Prepare(number)
	}
	return nil
}

// Batch implements engine.Source.
func (s share) Batch(number int64) (engine.Batch, error) {
	whole, err := s.source.Batch(number)
	if err != nil {
		return nil, err
	}
	b := engine.Batch{}
	for name, data := range whole {
		n := len(data) / s.shares
		b[name] = data[s.replica*n : (s.replica+1)*n]
	}
	return b, nil
}
