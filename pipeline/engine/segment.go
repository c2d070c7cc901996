package engine

import (
	"context"
	"slices"
	"sync"
	"time"
)

// segment is a stretch of work at whose start and end the pipeline is empty.
type segment struct {
	task    work
	gate    *gate
	failure *failure  // of the engine
	workers []*worker // by rank; nil: the rank is in another process
	report  func(Result)
}

// work is what the ranks of a segment work on.
type work struct {
	schedule     Schedule
	source       Source
	replicas     int // the first of all
	microbatches int // per batch and replica
	evaluates    bool
	// hyperparameters returns the hyperparameters of a batch's update. initialized reports whether an update was
	// applied before.
	hyperparameters func(batch int, initialized bool) []float32
}

// gate permits ranks to begin batches. Once it is closed, no rank begins a batch that no other has begun.
type gate struct {
	mu      sync.Mutex
	begun   int   // the newest batch that has begun
	granted int   // the first batch that must not begin yet
	limit   int   // the first batch that must not begin
	refused error // why it was closed; nil if the caller asked for it
	closed  bool
	limited chan struct{}
}

func newGate(from, to int) *gate {
	return &gate{begun: from - 1, granted: to, limit: to, limited: make(chan struct{})}
}

func (g *gate) begin(batch int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if batch >= min(g.granted, g.limit) {
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
	g.close(g.begun + 1)
}

// close closes the gate for the batches from a limit on, unless it is closed.
func (g *gate) close(limit int) {
	if g.closed {
		return
	}
	g.limit = min(g.limit, limit)
	g.closed = true
	close(g.limited)
}

// grant permits the batches before a limit to begin.
func (g *gate) grant(limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.granted = max(g.granted, limit)
}

// endAt closes the gate for the batches from a limit on. Those before it are granted.
func (g *gate) endAt(limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.granted = max(g.granted, limit)
	g.close(limit)
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
	seg, err := e.segment(w, from, to, func(x Result) { r.add(e.failure, x) })
	if err != nil {
		return from, err
	}
	unhook := context.AfterFunc(stop, seg.gate.stop)
	defer unhook()
	return e.finish(seg, from)
}

// finish works on a segment that begins with a batch, to its end. It returns the first batch that was not done.
func (e *Engine) finish(seg *segment, from int) (int, error) {
	e.stillRunning = seg.work()
	if err := e.failure.get(); err != nil {
		return from, err
	}
	for _, worker := range seg.local() {
		worker.timeline.wait(time.Now())
		if !seg.task.evaluates {
			worker.rank.roles = worker.machine.Roles()
		}
	}
	return seg.gate.end()
}

// local lists the workers of the ranks of this process.
func (seg *segment) local() []*worker {
	return slices.DeleteFunc(slices.Clone(seg.workers), func(w *worker) bool { return w == nil })
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

// segment creates the workers. Nothing of it needs to be closed. After a failure there is no further segment.
func (e *Engine) segment(w work, from, to int, report func(Result)) (*segment, error) {
	if err := e.failure.get(); err != nil {
		return nil, err
	}
	seg := &segment{task: w, gate: newGate(from, to), failure: e.failure, report: report}
	for _, rank := range e.ranks[:w.replicas*e.options.Layout.Stages] {
		if !rank.local() {
			seg.workers = append(seg.workers, nil)
			continue
		}
		m, err := rank.machine(w, from, to)
		if err != nil {
			for _, made := range seg.local() {
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
		for _, w := range seg.local() {
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

// deliver hands a transfer that has left the device to its receiver: to a worker, or to the process of its rank.
func (seg *segment) deliver(remote Remote, to int, t *transfer) {
	if seg.workers[to] == nil {
		remote.Send(to, t.message, t.payload, t.began)
		return
	}
	seg.post(to, event{transfer: t.forReceiver()})
}

// post hands an event to the worker of a rank, unless the segment has failed.
func (seg *segment) post(rank int, e event) {
	select {
	case seg.workers[rank].events <- e:
	case <-seg.failure.occurred:
	}
}
