package engine

import (
	"context"
	"sync"
	"time"
)

// segment is a stretch of work at whose start and end the pipeline is empty.
type segment struct {
	task    work
	gate    *gate
	failure *failure // of the engine
	workers []*worker
	results *results
}

// work is what the ranks of a segment work on.
type work struct {
	schedule     Schedule
	source       Source
	replicas     int // the first of all
	microbatches int // per batch and replica
	evaluates    bool
}

// gate permits ranks to begin batches. Once it is closed, no rank begins a batch that no other has begun.
type gate struct {
	mu      sync.Mutex
	begun   int   // the newest batch that has begun
	limit   int   // the first batch that must not begin
	refused error // why it was closed; nil if the caller asked for it
	closed  bool
	limited chan struct{}
}

func newGate(from, to int) *gate {
	return &gate{begun: from - 1, limit: to, limited: make(chan struct{})}
}

func (g *gate) begin(batch int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if batch >= g.limit {
		return false
	}
	g.begun = max(g.begun, batch)
	return true
}

// stop closes the gate. Batches that have begun are finished.
func (g *gate) stop() { g.refuse(nil) }

// refuse closes the gate because of an error.
func (g *gate) refuse(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused == nil {
		g.refused = err
	}
	if g.closed {
		return
	}
	g.limit = min(g.limit, g.begun+1)
	g.closed = true
	close(g.limited)
}

func (g *gate) end() (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit, g.refused
}

// run works on the batches from (included) to to (excluded) and returns the first batch that was not done. When stop
// ends, or the source cannot provide the next batch, it finishes the batches in progress. The first failure stops all
// ranks.
func (e *Engine) run(stop context.Context, w work, from, to int, r *results) (int, error) {
	if err := e.failure.get(); err != nil {
		return from, err
	}
	seg, err := e.segment(w, from, to, r)
	if err != nil {
		return from, err
	}
	unhook := context.AfterFunc(stop, seg.gate.stop)
	defer unhook()
	e.stillRunning = seg.work()
	if err := e.failure.get(); err != nil {
		return from, err
	}
	for _, worker := range seg.workers {
		worker.timeline.wait(time.Now())
		if !w.evaluates {
			worker.rank.roles = worker.machine.Roles()
		}
	}
	return seg.gate.end()
}

// begin permits a batch to begin if its data is available.
func (seg *segment) begin(batch int) bool {
	if p, ok := seg.task.source.(Preparer); ok {
		if err := p.Prepare(int64(batch)); err != nil {
			seg.gate.refuse(err)
			return false
		}
	}
	return seg.gate.begin(batch)
}

// segment creates the workers. Nothing of it needs to be closed.
func (e *Engine) segment(w work, from, to int, r *results) (*segment, error) {
	seg := &segment{task: w, gate: newGate(from, to), failure: e.failure, results: r}
	for _, rank := range e.ranks[:w.replicas*e.options.Layout.Stages] {
		m, err := rank.machine(w, from, to)
		if err != nil {
			for _, made := range seg.workers {
				made.machine.Close()
			}
			return nil, err
		}
		seg.workers = append(seg.workers, newWorker(rank, seg, m))
	}
	return seg, nil
}

// shutdownTimeout is how long the ranks may take to stop after one has failed. The failure is reported then, even if a
// device hangs; Close waits for it.
const shutdownTimeout = 500 * time.Millisecond

// work runs all workers to their end. If some still run after a failure, it returns a channel that is closed when they
// have stopped.
func (seg *segment) work() (stillRunning <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		var workers sync.WaitGroup
		for _, w := range seg.workers {
			workers.Go(w.work)
		}
		workers.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-seg.failure.occurred:
		select {
		case <-ended:
		case <-time.After(shutdownTimeout):
			return ended
		}
	}
	return nil
}

// post hands an event to the worker of a rank, unless the segment has failed.
func (seg *segment) post(rank int, e event) {
	select {
	case seg.workers[rank].events <- e:
	case <-seg.failure.occurred:
	}
}
