package replicas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Options describe replicas in one process.
type Options struct {
	Settings
	Engines []*engine.Engine
	Devices []device.Device // the first of each replica, which computes its share of exchanges
	Execute engine.Executor // of exchanges
}

// Pipeline is replicas that seldom talk, in one process. It has the methods of engine.Engine that a run needs.
type Pipeline struct {
	*Owner
	options  Options
	replicas []local
	tracer   engine.Tracer // nil: nothing is recorded
}

// local is a replica in this process.
type local struct {
	*replica
	engine *engine.Engine
}

// New makes a Pipeline of engines, which it closes.
func New(o Options) *Pipeline {
	o.Replicas = len(o.Engines)
	p := &Pipeline{Owner: NewOwner(o.Settings), options: o}
	for i, e := range o.Engines {
		p.replicas = append(p.replicas, local{newReplica(i, o.Settings, e, p.fragments, p.base), e})
	}
	return p
}

// Load allocates all memory and compiles all kernels. Weights and states are zero.
func (p *Pipeline) Load() error {
	for i, r := range p.replicas {
		if err := r.engine.Load(); err != nil {
			return errors.Join(err, p.Close())
		}
		programs := replicaPrograms
		if i == 0 {
			programs = slices.Concat(replicaPrograms, ownerPrograms)
		}
		var err error
		if r.machine, err = newMachine(p.config, p.options.Devices[i], p.options.Execute, p.fragments, programs...); err != nil {
			return errors.Join(fmt.Errorf("exchanges of replica %d: %w", i, err), p.Close())
		}
	}
	p.Owner.machine = p.replicas[0].machine
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
		errs = append(errs, r.engine.Close(), r.machine.close())
		r.machine = nil
	}
	return errors.Join(errs...)
}

// Train trains all replicas on their shares of the batches from (included) to to (excluded), as engine.Engine.Train
// does. Replicas end with the same batch.
func (p *Pipeline) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	for from < to && stop.Err() == nil {
		until := p.flights.next(p.Plan, from, to)
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

// exchange lands and sends what the plan has after a step. The pipelines of all replicas are empty.
func (p *Pipeline) exchange(step int) error {
	each := func(land func(*replica, int) error) func(f int) error {
		return func(f int) error {
			for _, r := range p.replicas {
				if err := land(r.replica, f); err != nil {
					return err
				}
			}
			return nil
		}
	}
	send := func(f int) error { return p.send(f, step) }
	return p.flights.exchange(p.Plan, p.fragments, step, each((*replica).land), send, each((*replica).landAtOnce))
}

// send sends a fragment from all replicas and takes the outer step.
func (p *Pipeline) send(f, at int) error {
	began, lands := time.Now(), p.Plan.Lands(at)
	var messages []Message
	for _, r := range p.replicas {
		m, err := r.send(f, at, lands > at)
		if err != nil {
			return err
		}
		messages = append(messages, m)
	}
	if _, err := p.Step(f, at, messages); err != nil {
		return err
	}
	p.Trace(p.tracer, f, at, began, time.Since(began), 0)
	return nil
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

// train trains all replicas between two exchanges. It returns the first batch that was not done, the error of an engine
// that has failed, and the error of each or of the source.
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
		reached, failed, noBatch = p.trainAll(stop, source, from, to, measured)
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

// trainAll trains with all engines, each on its own devices, up to the same batch. It returns the first batch that was
// not done, the error of an engine that has failed, and the error of a source that has no further batch.
func (p *Pipeline) trainAll(stop context.Context, source engine.Source, from, to int,
	measured []chan engine.Measured) (reached int, failed, refused error) {
	stop, cancel := context.WithCancel(stop)
	defer cancel()
	ends := slices.Repeat([]int{from}, len(p.replicas))
	run := func(stop context.Context, to int) error {
		var running sync.WaitGroup
		errs := make([]error, len(p.replicas))
		for i, r := range p.replicas {
			running.Go(func() {
				ends[i], errs[i] = r.engine.Train(stop, Share(source, i, len(p.replicas)), ends[i], to, func(m engine.Measured) error {
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
	r := p.replicas[0]
	if err := r.Lend(); err != nil {
		return err
	}
	err := r.writeAll(p.outer, p.Evaluated())
	if err == nil {
		err = r.engine.Evaluate(stop, source, batches, each)
	}
	return errors.Join(err, r.Return())
}

// share is a replica's share of the batches of a source.
type share struct {
	source          engine.Source
	replica, shares int
}

// Share is the share of one of several replicas of the batches of a source.
func Share(s engine.Source, replica, replicas int) engine.Source { return share{s, replica, replicas} }

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
