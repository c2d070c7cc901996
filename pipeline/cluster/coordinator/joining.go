package coordinator

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A replica joins in three steps, during which the others go on:
//
//	open     its members plan and load the pipeline
//	follow   it gets the base, and every change of it
//	begin    it begins with the first batch that no other has been granted, once the exchanges before that are done, and takes
//	         part in all later ones

// fill fills the places of replicas that are away, as members come, until the replicas are closed.
func (r *Replicas) fill() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-r.failing
		cancel()
	}()
	for wait := time.Second; ctx.Err() == nil; {
		away := r.away()
		if len(away) == 0 {
			select {
			case <-r.vacant:
			case <-ctx.Done():
			}
			continue
		}
		number, err := r.options.Offer(ctx, away)
		if err != nil {
			return
		}
		if err := r.join(ctx, number); err == nil || ctx.Err() != nil {
			wait = time.Second
			continue
		}
		select { // the members may be the same ones again
		case <-time.After(wait):
			wait = min(2*wait, time.Minute)
		case <-ctx.Done():
		}
	}
}

// away are the numbers of replicas that are neither here nor about to join.
func (r *Replicas) away() (all []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joining != nil {
		return nil // it begins with the next round
	}
	for number, s := range r.slots {
		if s == nil {
			all = append(all, number)
		}
	}
	return all
}

// join opens a replica that is away, and begins it.
func (r *Replicas) join(ctx context.Context, number int) (err error) {
	s := &slot{number: number}
	defer func() {
		if err != nil {
			r.giveUp(s)
		}
	}()
	if err := r.openSlot(ctx, s, func(s *slot) { r.joining = s }); err != nil {
		return err
	}
	if s.pipeline == nil {
		return fmt.Errorf("no members for %s", name(number))
	}
	if err := s.pipeline.Load(); err != nil {
		return err
	}
	r.mu.Lock()
	tracer := r.tracer
	r.mu.Unlock()
	s.pipeline.SetTrace(tracer)
	if err := r.follow(ctx, s); err != nil {
		return err
	}
	go r.watch(s)
	return r.begin(s)
}

// giveUp forgets a replica that could not join.
func (r *Replicas) giveUp(s *slot) {
	r.mu.Lock()
	if r.joining == s {
		r.joining = nil
	}
	r.mu.Unlock()
	if s.pipeline != nil {
		_ = s.pipeline.Close() // it always succeeds
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
