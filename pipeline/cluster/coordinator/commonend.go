package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// commonEnd makes replicas that train on their own end with the same batch.
type commonEnd struct {
	mu      sync.Mutex
	granted int // the first batch that no replica has been granted
	stopped bool
}

// open reports whether a batch may be granted: until stop ends, and then, if another replica has been granted it.
func (t *commonEnd) open(stop context.Context, batch int) bool {
	if t == nil {
		return stop.Err() == nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isOpen(stop, batch)
}

// isOpen is open of a caller that holds the lock.
func (t *commonEnd) isOpen(stop context.Context, batch int) bool {
	t.stopped = t.stopped || stop.Err() != nil
	return !t.stopped || batch < t.granted
}

// admit is open for a batch whose data is there: other replicas go on to it from then on.
func (t *commonEnd) admit(stop context.Context, batch int) bool {
	if t == nil {
		return stop.Err() == nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	open := t.isOpen(stop, batch)
	if open {
		t.granted = max(t.granted, batch+1)
	}
	return open
}

// refuse ends all replicas before a batch that there is no data for. It reports whether they do: others may have been
// granted it, and go on.
func (t *commonEnd) refuse(batch int) bool {
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if batch < t.granted {
		return false
	}
	t.stopped = true
	return true
}

// first is the first batch that no replica has been granted; 0 without a round.
func (t *commonEnd) first() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.granted
}

// round is the training of all replicas, from a batch to another. Replicas may join it.
type round struct {
	limit   *commonEnd
	stop    context.Context // ends the round
	cancel  func()          // ends stop
	source  engine.Source
	to      int
	changed chan struct{} // has room for one

	mu      sync.Mutex
	all     []*participant // that are not lost
	next    int            // the batch to deliver
	working int            // participants that have not ended, and those that are lost and work
}

// participant is a replica in a round. Another that takes its number later is another participant.
type participant struct {
	*slot
	round *round
	queue []engine.Measured // batches that were not delivered
	begun int               // the batch with which it has begun
	ended bool
	end   int // the first batch that it has not done, if it has ended
	err   error
}

func newRound(stop context.Context, source engine.Source, from, to int) *round {
	return &round{limit: &commonEnd{granted: from}, stop: stop, source: source, to: to, changed: make(chan struct{}, 1), next: from}
}

// enter adds a replica. nil: others have ended, and there is nothing to join.
func (r *round) enter(s *slot, from int) *participant {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.all, func(p *participant) bool { return p.ended }) {
		return nil
	}
	p := &participant{slot: s, round: r, begun: from}
	r.all = append(r.all, p)
	slices.SortFunc(r.all, func(a, b *participant) int { return cmp.Compare(a.number, b.number) })
	r.working++
	return p
}

// waitsFor reports whether a replica works, while others have ended. There may be no round.
func (r *round) waitsFor(s *slot) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := func(p *participant) bool { return p.ended }
	return slices.ContainsFunc(r.all, ended) && slices.ContainsFunc(r.all, func(p *participant) bool { return p.slot == s && !p.ended })
}

// add takes what the replica has measured.
func (p *participant) add(m engine.Measured) error {
	p.round.mu.Lock()
	defer p.round.mu.Unlock()
	m.Replica = p.number
	p.queue = append(p.queue, m)
	signal(p.round.changed)
	return nil
}

// leave takes how the replica has ended. One that is lost does not count.
func (p *participant) leave(end int, err error, lost bool) {
	r := p.round
	r.mu.Lock()
	defer r.mu.Unlock()
	r.working--
	p.ended, p.end, p.err = true, end, err
	if lost {
		r.all = slices.DeleteFunc(r.all, func(other *participant) bool { return other == p })
	}
	signal(r.changed)
}

// take returns the batches that all replicas have measured, and reports whether all have ended.
func (r *round) take() (complete []engine.Measured, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		r.skip()
		all := r.heads()
		if len(all) == 0 {
			return complete, r.working == 0
		}
		complete = append(complete, replicas.Combine(all))
		r.next++
	}
}

// skip goes on to the first batch that any replica measures: replicas that would have measured earlier ones are lost.
func (r *round) skip() {
	if len(r.all) == 0 {
		return
	}
	first := slices.MinFunc(r.all, func(a, b *participant) int { return a.begun - b.begun })
	r.next = max(r.next, first.begun)
}

// heads takes the measurements of the next batch, by number of the replica; none, if one is missing. Replicas that
// begin with a later batch have none.
func (r *round) heads() (all []engine.Measured) {
	for _, p := range r.all {
		if p.begun <= r.next && len(p.queue) == 0 {
			return nil
		}
	}
	for _, p := range r.all {
		if p.begun <= r.next {
			all, p.queue = append(all, p.queue[0]), p.queue[1:]
		}
	}
	return all
}

// end is the first batch that was not done. All replicas agree on it.
func (r *round) end(from int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reached := from
	var errs []error
	texts := map[string]bool{}
	for _, p := range r.all {
		reached = max(reached, p.end)
		if p.err != nil && !texts[p.err.Error()] { // data that is missing is missing for all
			errs, texts[p.err.Error()] = append(errs, p.err), true
		}
	}
	err := errors.Join(errs...)
	for _, p := range r.all {
		if p.end != reached && err == nil {
			err = errors.New("replicas have ended with different batches")
		}
	}
	return reached, err
}
