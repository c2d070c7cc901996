package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// A replica joins in three steps, during which the others go on:
//
//	open     its members plan and load the pipeline
//	follow   it gets the base, and every change of it
//	begin    it begins with the first batch that no other has been granted, once the exchanges before that are done, and takes
//	         part in all later ones

// filling is the state of fillAll, about replicas that are away.
type filling struct {
	closing map[int]bool // by number: the members of the one that has failed may still be busy
	failed  int          // replicas in a row that have not taken part in an exchange
	noted   string       // why the last one could not join
}

// Bounds of how long replicas that fail are not started again.
const (
	leastBackOff = 100 * time.Millisecond
	mostBackOff  = time.Minute
)

// fillAll fills the places of replicas that are away, as members come, until the replicas are closed.
func (r *Replicas) fillAll() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-r.failing
		cancel()
	}()
	for ctx.Err() == nil {
		away := r.away()
		if len(away) == 0 {
			select {
			case <-r.vacant:
			case <-ctx.Done():
			}
			continue
		}
		if !r.backOff(ctx) {
			return
		}
		number, err := r.offer(ctx, away)
		if err != nil {
			continue
		}
		if err := r.join(ctx, number); err != nil && ctx.Err() == nil {
			r.noteJoin(number, err)
		}
	}
}

// offer waits for members that can be one of some replicas. It fails when others are away, too: a member may be for these.
func (r *Replicas) offer(ctx context.Context, away []int) (number int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-r.vacant:
			cancel()
		case <-ctx.Done():
		}
	}()
	return r.options.Offer(ctx, away)
}

// backOff waits the longer the more replicas in a row have failed: the members may be the same ones again. It reports whether
// others may join.
func (r *Replicas) backOff(ctx context.Context) bool {
	r.mu.Lock()
	wait := time.Duration(0)
	if n := r.fill.failed; n > 0 {
		wait = min(leastBackOff<<min(n-1, 10), mostBackOff)
	}
	r.mu.Unlock()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// noteJoin records why a replica could not join, once for each cause.
func (r *Replicas) noteJoin(number int, err error) {
	text := fmt.Sprintf("%s could not join %v", name(number), err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != r.fill.noted {
		r.fill.noted = text
		r.events = append(r.events, event{r.limit.first(), text})
	}
}

// end closes a replica that has failed. Its number is free when its members have ended its work. The caller holds the lock.
func (r *Replicas) end(s *slot) {
	r.fill.closing[s.number] = true
	barren := s.last == replicas.Exchange{}
	if r.fill.failed = 0; barren {
		r.fill.failed++
	}
	r.closing.Go(func() {
		_ = s.pipeline.Close() // it always succeeds
		if barren && r.options.Failed != nil {
			r.options.Failed(s.number)
		}
		r.mu.Lock()
		delete(r.fill.closing, s.number)
		r.mu.Unlock()
		signal(r.vacant)
	})
}

// away are the numbers of replicas that are neither here nor about to join.
func (r *Replicas) away() (all []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joining != nil {
		return nil // it begins with the next round
	}
	for number, s := range r.slots {
		if s == nil && !r.fill.closing[number] {
			all = append(all, number)
		}
	}
	return all
}

// The longest times for a replica that joins, while other members wait: to plan and load it, besides pipeline.watchdog, and
// for its base at the slowest useful rate, in bytes a second.
const (
	openTimeout = 10 * time.Minute
	slowestBase = 125e3
)

// join opens a replica that is away, and begins it.
func (r *Replicas) join(ctx context.Context, number int) (err error) {
	s := &slot{number: number}
	defer func() {
		if err != nil {
			r.giveUp(s)
		}
		if err != nil && s.pipeline != nil {
			err = fmt.Errorf("on %s: %w", strings.Join(s.pipeline.group.members, ", "), err)
		}
	}()
	opening, opened := r.within(ctx, s, r.openTimeout(), "to plan and load it")
	defer opened()
	if err := r.openSlot(opening, s, func(s *slot) { r.joining = s }); err != nil {
		return err
	}
	if s.pipeline == nil {
		return errors.New("without members")
	}
	if err := s.pipeline.Load(); err != nil {
		return err
	}
	opened()
	r.mu.Lock()
	tracer := r.tracer
	r.mu.Unlock()
	s.pipeline.SetTrace(tracer)
	bytes := 0.0
	for _, p := range s.pipeline.plan.parameters {
		bytes += float64(p.Type.Bytes())
	}
	following, followed := r.within(ctx, s, r.openTimeout()+time.Duration(bytes/slowestBase*float64(time.Second)), "for the shared weights")
	defer followed()
	if err := r.follow(following, s); err != nil {
		return err
	}
	followed()
	go r.watch(s)
	return r.begin(s)
}

// openTimeout is how long members may take to plan and load a replica.
func (r *Replicas) openTimeout() time.Duration {
	if r.options.OpenTimeout > 0 {
		return r.options.OpenTimeout
	}
	watchdog, err := r.options.Task.Config.Pipeline.Processes.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return openTimeout + watchdog
}

// within bounds the time of something that a replica joins by: it fails then. The function that it returns ends that.
func (r *Replicas) within(ctx context.Context, s *slot, limit time.Duration, what string) (context.Context, func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("its members took more than %v %s (%w)", limit, what, device.ErrLost))
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		p := s.pipeline
		r.mu.Unlock()
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
func (r *Replicas) giveUp(s *slot) {
	if s.pipeline != nil {
		_ = s.pipeline.Close() // it always succeeds
	}
	if r.options.Failed != nil {
		r.options.Failed(s.number)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fill.failed++
	if r.joining == s {
		r.joining = nil
	}
}

// follow sends a replica the base, and waits until it has received it. Changes follow.
func (r *Replicas) follow(ctx context.Context, s *slot) error {
	r.owning.Lock()
	err := r.owner.Begin(holder{s.pipeline})
	s.follows = true
	r.owning.Unlock()
	if err != nil {
		return err
	}
	return s.pipeline.flush(ctx)
}

// begin begins a replica that has the base: in the round in progress, or with the next.
func (r *Replicas) begin(s *slot) error {
	r.owning.Lock()
	defer r.owning.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.pipeline.group.failing(); err != nil {
		return err
	}
	if r.round == nil || !r.enter(r.round, s, r.round.limit.first()) {
		s.waits = true
	}
	return nil
}

// enter makes a replica one of those of a round, from a batch on. It reports whether it can. The caller holds the locks.
func (r *Replicas) enter(round *round, s *slot, from int) bool {
	if s.pipeline.group.failing() != nil || from >= round.to {
		return false
	}
	p := round.enter(s, from)
	if p == nil {
		return false
	}
	s.from, s.waits, s.heard = from, false, time.Now()
	r.joining, r.slots[s.number] = nil, s
	r.events = append(r.events, event{from, fmt.Sprintf("%s begins after step %d on %s, at the shared weights, with a fresh optimizer",
		name(s.number), from, strings.Join(s.pipeline.group.members, ", "))})
	signal(r.vacant)
	signal(r.changed)
	signal(round.changed)
	go func() {
		if err := r.settle(from); err != nil {
			p.leave(from, err, true)
			return
		}
		r.owning.Lock()
		flights := r.owner.Flights(from)
		s.flights, s.follows = &flights, false
		r.owning.Unlock()
		r.progressed(s)
		r.train(p, work{from: from})
	}()
	return true
}

// flush waits until the members have received everything so far.
func (p *Pipeline) flush(ctx context.Context) error {
	node, ok := p.group.node.(interface {
		FlushTo(ctx context.Context, peer string) error
	})
	if !ok {
		return nil // of a test: nothing is under way for long
	}
	return p.group.each(ctx, func(ctx context.Context, member string) error { return node.FlushTo(ctx, member) })
}
