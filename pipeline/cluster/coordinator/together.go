package coordinator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// together makes replicas that train on their own end with the same batch.
type together struct {
	mu      sync.Mutex
	granted int // the first batch that no replica has been granted
	stopped bool
}

// admit reports whether a batch may be granted: until stop ends, and then, if another replica has been granted it.
func (t *together) admit(stop context.Context, batch int) bool {
	if t == nil {
		return stop.Err() == nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = t.stopped || stop.Err() != nil
	if t.stopped {
		return batch < t.granted
	}
	t.granted = max(t.granted, batch+1)
	return true
}

// first is the first batch that no replica has been granted.
func (t *together) first() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.granted
}

// round is the training of all replicas, from a batch to another. Replicas may join it.
type round struct {
	limit   *together
	stop    context.Context // ends the round
	cancel  func()          // ends stop
	source  engine.Source
	to      int
	changed chan struct{} // has room for one

	mu      sync.Mutex
	queues  map[int][]engine.Measured // by replica that is not lost: batches that were not delivered
	begins  map[int]int               // by replica: the batch with which it has begun
	next    int                       // the batch to deliver
	working int                       // replicas
	ends    map[int]int               // by replica that has ended
	errs    []error                   // of replicas that are not lost
}

func newRound(stop context.Context, source engine.Source, from, to int) *round {
	return &round{limit: &together{granted: from}, stop: stop, source: source, to: to, changed: make(chan struct{}, 1),
		queues: map[int][]engine.Measured{}, begins: map[int]int{}, next: from, ends: map[int]int{}}
}

// enter adds a replica, unless others have ended: then there is nothing to join.
func (r *round) enter(replica, from int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ends) > 0 {
		return false
	}
	r.queues[replica], r.begins[replica] = nil, from
	r.working++
	return true
}

// add takes what a replica has measured.
func (r *round) add(replica int) func(engine.Measured) error {
	return func(m engine.Measured) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if queue, ok := r.queues[replica]; ok {
			m.Replica = replica
			r.queues[replica] = append(queue, m)
		}
		signal(r.changed)
		return nil
	}
}

// ended takes how a replica has ended. One that is lost does not count.
func (r *round) ended(replica, end int, err error, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.working--
	if lost {
		delete(r.queues, replica)
	} else {
		r.ends[replica] = end
		r.errs = append(r.errs, err)
	}
	signal(r.changed)
}

// take returns the batches that all replicas have measured, and reports whether all have ended.
func (r *round) take() (complete []engine.Measured, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		all := r.heads()
		if len(all) == 0 {
			return complete, r.working == 0
		}
		for _, m := range all {
			r.queues[m.Replica] = r.queues[m.Replica][1:]
		}
		complete = append(complete, replicas.Combine(all))
		r.next++
	}
}

// heads are the measurements of the next batch, by number of the replica; none, if one is missing. Replicas that begin with a
// later batch have none.
func (r *round) heads() (all []engine.Measured) {
	for _, replica := range slices.Sorted(maps.Keys(r.queues)) {
		queue := r.queues[replica]
		switch {
		case r.begins[replica] > r.next:
		case len(queue) == 0:
			return nil
		default:
			all = append(all, queue[0])
		}
	}
	return all
}

// end is the first batch that was not done. All replicas agree on it.
func (r *round) end(from int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reached := from
	for _, end := range r.ends {
		reached = max(reached, end)
	}
	err := errors.Join(r.errs...)
	for _, end := range r.ends {
		if end != reached && err == nil {
			err = errors.New("replicas have ended with different batches")
		}
	}
	return reached, err
}
