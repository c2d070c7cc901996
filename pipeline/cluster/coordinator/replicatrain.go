package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// Train implements train.Pipeline. Each replica trains at its own pace, on its share of the batches.
func (r *Replicas) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	if from >= to || stop.Err() != nil {
		return from, nil
	}
	stop, cancel := context.WithCancel(stop)
	defer cancel()
	round := newRound(stop, source, from, to)
	r.beginRound(round, cancel)
	var declined error
	for over := false; !over; {
		<-round.changed // all replicas end some time
		r.Record()
		var complete []engine.Measured
		complete, over = round.take()
		for _, m := range complete {
			if declined == nil {
				if declined = each(m); declined != nil {
					cancel()
				}
			}
		}
	}
	r.mu.Lock()
	r.rounds.current = nil
	r.mu.Unlock()
	reached, err := round.end(from)
	err = errors.Join(err, declined, r.settle(reached))
	r.owner.mu.Lock()
	r.owner.outer.Landed(reached)
	r.owner.mu.Unlock()
	r.Record()
	return reached, err
}

// beginRound begins to train all replicas, and one that has waited for that. From the first round on others may join:
// before, the state of a checkpoint may not be complete.
func (r *Replicas) beginRound(round *round, cancel context.CancelFunc) {
	if r.options.Offer != nil {
		r.filler.start()
	}
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	round.cancel = cancel
	r.exchanges.begin(round.next, r.owner.outer.Plan.Fragments)
	r.rounds = rounds{round, round.limit}
	for _, s := range r.places.slots {
		if s != nil {
			go r.train(round.enter(s, round.next), work{from: round.next}) // none has ended yet
		}
	}
	if s := r.places.joining; s != nil && s.waits {
		r.enter(round, s, round.next)
	}
	signal(round.changed)
}

// begin begins a replica that has the base: in the round in progress, or with the next.
func (r *Replicas) begin(s *slot) error {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.pipeline.group.failing(); err != nil {
		return err
	}
	if r.rounds.current == nil || !r.enter(r.rounds.current, s, r.rounds.limit.first()) {
		s.waits = true
	}
	return nil
}

// enter adds a replica to a round, from a batch on. It reports whether it can. The caller holds the locks.
func (r *Replicas) enter(round *round, s *slot, from int) bool {
	if s.pipeline.group.failing() != nil || from >= round.to {
		return false
	}
	p := round.enter(s, from)
	if p == nil {
		return false
	}
	s.from, s.waits, s.settles = from, false, true
	r.places.joining, r.places.slots[s.number] = nil, s
	r.events.add(from, fmt.Sprintf("%s begins after step %d on %s, at the shared weights, with a fresh optimizer",
		name(s.number), from, strings.Join(s.pipeline.group.members, ", ")))
	signal(r.filler.vacant)
	signal(r.changed)
	signal(round.changed)
	go func() {
		if err := r.settle(from); err != nil {
			p.leave(from, err, true)
			return
		}
		r.owner.mu.Lock()
		flights := r.owner.outer.Flights(from)
		s.flights, s.follows = &flights, false
		r.owner.mu.Unlock()
		r.mu.Lock()
		s.settles = false
		r.mu.Unlock()
		r.train(p, work{from: from})
	}()
	return true
}

// begun is the first batch that no replica has been granted.
func (r *Replicas) begun() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rounds.limit.first()
}

// train trains a replica.
func (r *Replicas) train(p *participant, w work) {
	s, round := p.slot, p.round
	w.to, w.commonEnd, w.losses, w.microbatches = round.to, round.limit, 1, s.pipeline.plan.microbatches
	w.flights, w.source = s.takeFlights(), replicas.Share(round.source, s.number, len(r.places.slots))
	r.progressed(s)
	end, err := s.pipeline.work(round.stop, w, func(m engine.Measured) error {
		r.progressed(s)
		return p.add(m)
	})
	failed := s.failing()
	if failed != nil {
		r.lose(s, failed)
	} else if err != nil { // there is no further batch
		round.cancel()
	}
	p.leave(end, err, failed != nil)
}

// takeFlights are the flights for the first segment of the replica.
func (s *slot) takeFlights() *[]replicas.Flight {
	all := s.flights
	s.flights = nil
	return all
}

// Evaluate implements train.Pipeline: it evaluates the outer weights on one of the replicas, whose own weights are put
// back afterwards. If that is lost, it begins again on another.
func (r *Replicas) Evaluate(stop context.Context, source engine.Source, batches int, each func(engine.Measured) error) error {
	for {
		if err := r.Failed(); err != nil {
			return err
		}
		s := r.present()[0]
		r.measures(s, true)
		var all []engine.Measured
		err := s.pipeline.lent(func() error {
			if err := r.writeOuter(s.pipeline); err != nil {
				return err
			}
			return s.pipeline.Evaluate(stop, source, batches, func(m engine.Measured) error {
				all = append(all, m)
				return nil
			})
		})
		r.measures(s, false)
		if failed := s.failing(); failed != nil {
			r.lose(s, failed)
			r.Record()
			continue
		}
		for _, m := range all {
			if err := each(m); err != nil {
				return err
			}
		}
		return err
	}
}

// measures notes whether the run waits for what a replica evaluates.
func (r *Replicas) measures(s *slot, now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.measures = now
}
