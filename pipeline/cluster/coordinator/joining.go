package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// A replica joins in three steps, during which the others go on:
//
//	open     its members plan and load the pipeline
//	follow   it gets the base, and every change of it
//	begin    it begins with the first batch that no other has been granted, once the exchanges before that are done, and takes
//	         part in all later ones

// filler fills the places of replicas that are away, as members come.
type filler struct {
	replicas *Replicas
	once     sync.Once
	filling  sync.WaitGroup // run
	closing  sync.WaitGroup // of replicas that are lost
	vacant   chan struct{}  // has room for one: a replica is away

	mu     sync.Mutex   // locked after Replicas.mu
	ending map[int]bool // by number: the members of the one that has failed may still be busy
	failed int          // replicas in a row that have not taken part in an exchange
	noted  string       // why the last one could not join
}

func newFiller(r *Replicas) filler {
	return filler{replicas: r, vacant: make(chan struct{}, 1), ending: map[int]bool{}}
}

// Bounds of how long replicas that fail are not started again.
const (
	leastBackOff = 100 * time.Millisecond
	mostBackOff  = time.Minute
)

// start fills places from now on, unless it does already.
func (f *filler) start() { f.once.Do(func() { f.filling.Go(f.run) }) }

// run fills places until the replicas fail.
func (f *filler) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-f.replicas.failure.happened
		cancel()
	}()
	for ctx.Err() == nil {
		away := f.away()
		if len(away) == 0 {
			select {
			case <-f.vacant:
			case <-ctx.Done():
			}
			continue
		}
		if !f.backOff(ctx) {
			return
		}
		number, err := f.offer(ctx, away)
		if err != nil {
			continue
		}
		if err := f.join(ctx, number); err != nil && ctx.Err() == nil {
			f.noteJoin(number, err)
		}
	}
}

// offer waits for members that can be one of some replicas. It fails when others are away, too: a member may be theirs.
func (f *filler) offer(ctx context.Context, away []int) (number int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.vacant:
			cancel()
		case <-ctx.Done():
		}
	}()
	return f.replicas.options.Offer(ctx, away)
}

// backOff waits the longer the more replicas in a row have failed. It reports whether others may join.
func (f *filler) backOff(ctx context.Context) bool {
	f.mu.Lock()
	wait := time.Duration(0)
	if f.failed > 0 {
		wait = min(leastBackOff<<min(f.failed-1, 10), mostBackOff)
	}
	f.mu.Unlock()
	return sleep.For(wait, ctx.Done())
}

// took notes that a replica takes part in its first exchange.
func (f *filler) took() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = 0
}

// noteJoin records why a replica could not join, once for each cause.
func (f *filler) noteJoin(number int, err error) {
	text := fmt.Sprintf("%s could not join %v", name(number), err)
	f.mu.Lock()
	noted := f.noted
	f.noted = text
	f.mu.Unlock()
	if text != noted {
		f.replicas.events.add(f.replicas.begun(), text)
	}
}

// end closes a replica that has failed. Its number is free when its members have ended its work. The caller holds
// Replicas.mu.
func (f *filler) end(s *slot) {
	barren := s.last == replicas.Exchange{}
	f.mu.Lock()
	f.ending[s.number] = true
	if barren {
		f.failed++
	}
	f.mu.Unlock()
	f.closing.Go(func() {
		_ = s.pipeline.Close() // it always succeeds
		if failed := f.replicas.options.Failed; (barren || s.hangs) && failed != nil {
			failed(s.number)
		}
		f.mu.Lock()
		delete(f.ending, s.number)
		f.mu.Unlock()
		signal(f.vacant)
	})
}

// away are the numbers of replicas that are neither here nor about to join.
func (f *filler) away() (all []int) {
	r := f.replicas
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places.joining != nil {
		return nil // it begins with the next round
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for number, s := range r.places.slots {
		if s == nil && !f.ending[number] {
			all = append(all, number)
		}
	}
	return all
}

// The longest times for a replica that joins, while other members wait: to plan and load it, besides pipeline.watchdog,
// and for its base at the slowest useful rate, in bytes a second.
const (
	openTimeout = 10 * time.Minute
	slowestBase = 125e3
)

// join opens a replica that is away, and begins it.
func (f *filler) join(ctx context.Context, number int) (err error) {
	r := f.replicas
	s := &slot{number: number}
	defer func() {
		if err != nil {
			f.giveUp(s)
		}
		if err != nil && s.pipeline != nil {
			err = fmt.Errorf("on %s: %w", strings.Join(s.pipeline.group.members, ", "), err)
		}
	}()
	opening, opened := f.within(ctx, s, f.openTimeout(), "to plan and load it")
	defer opened()
	if err := r.openSlot(opening, s, func(s *slot) { r.places.joining = s }); err != nil {
		return err
	}
	if s.pipeline == nil {
		return errors.New("without members")
	}
	if err := s.pipeline.Load(); err != nil {
		return err
	}
	opened()
	r.owner.mu.Lock()
	tracer := r.owner.tracer
	r.owner.mu.Unlock()
	s.pipeline.SetTrace(tracer)
	bytes := 0.0
	for _, p := range s.pipeline.plan.parameters {
		bytes += float64(p.Type.Bytes())
	}
	following, followed := f.within(ctx, s, f.openTimeout()+time.Duration(bytes/slowestBase*float64(time.Second)), "for the shared weights")
	defer followed()
	if err := f.follow(following, s); err != nil {
		return err
	}
	followed()
	go r.watch(s)
	return r.begin(s)
}

// openTimeout is how long members may take to plan and load a replica.
func (f *filler) openTimeout() time.Duration {
	o := f.replicas.options
	if o.OpenTimeout > 0 {
		return o.OpenTimeout
	}
	watchdog, err := o.Task.Config.Pipeline.Processes.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return openTimeout + watchdog
}

// within aborts a replica's pipeline if a step of its start takes longer than limit. The returned function ends that.
func (f *filler) within(ctx context.Context, s *slot, limit time.Duration, what string) (context.Context, func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("its members took more than %v %s (%w)", limit, what, device.ErrLost))
	stop := context.AfterFunc(ctx, func() {
		f.replicas.mu.Lock()
		p := s.pipeline
		f.replicas.mu.Unlock()
		if p != nil {
			p.Abort(context.Cause(ctx))
		}
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

// giveUp forgets a replica that could not join, once its members have ended its work.
func (f *filler) giveUp(s *slot) {
	if s.pipeline != nil {
		_ = s.pipeline.Close() // it always succeeds
	}
	r := f.replicas
	if r.options.Failed != nil {
		r.options.Failed(s.number)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places.joining == s {
		r.places.joining = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed++
}

// follow sends a replica the base, and waits until it has received it. Changes follow.
func (f *filler) follow(ctx context.Context, s *slot) error {
	owner := &f.replicas.owner
	owner.mu.Lock()
	err := owner.outer.Begin(holder{s.pipeline})
	s.follows = true
	owner.mu.Unlock()
	if err != nil {
		return err
	}
	g := s.pipeline.group
	return g.each(ctx, g.node.Flush)
}
