package coordinator

import (
	"context"
	"errors"
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

// round is the training of all replicas, from a batch to another.
type round struct {
	changed chan struct{} // has room for one

	mu      sync.Mutex
	queues  map[int][]engine.Measured // by replica that is not lost: batches that were not delivered
	working int                       // replicas
	ends    map[int]int               // by replica that has ended
	errs    []error                   // of replicas that are not lost
}

func newRound(slots []*slot) *round {
	r := &round{changed: make(chan struct{}, 1), queues: map[int][]engine.Measured{}, working: len(slots), ends: map[int]int{}}
	for _, s := range slots {
		r.queues[s.number] = nil
	}
	return r
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
	for len(r.queues) > 0 {
		var all []engine.Measured
		for replica := range maxReplica(r.queues) {
			if queue := r.queues[replica]; len(queue) > 0 {
				all = append(all, queue[0])
			}
		}
		if len(all) < len(r.queues) {
			break
		}
		for replica, queue := range r.queues {
			r.queues[replica] = queue[1:]
		}
		complete = append(complete, replicas.Combine(all))
	}
	return complete, r.working == 0
}

// maxReplica is one more than the greatest number of a replica.
func maxReplica(queues map[int][]engine.Measured) (n int) {
	for replica := range queues {
		n = max(n, replica+1)
	}
	return n
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
