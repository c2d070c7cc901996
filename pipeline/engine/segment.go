package engine

import (
	"context"
	"sync"
	"time"
)

// segment is work between two moments at which the pipeline is empty.
type segment struct {
	task    work
	ctx     context.Context // ends when a line fails
	fail    context.CancelCauseFunc
	gate    *gate
	workers []*worker
	results *results
}

// work is what a segment's lines do.
type work struct {
	schedule     Schedule
	source       Source
	replicas     int // the first of all
	microbatches int // of a batch on one replica
	evaluates    bool
}

// gate lets lines begin batches, in step: once it is closed, none begins a batch that no other has begun.
type gate struct {
	mu      sync.Mutex
	begun   int   // the newest batch
	limit   int   // the first that is not begun
	refused error // why it was closed, if that was not asked for
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

// stop closes the gate: batches that were begun are finished.
func (g *gate) stop() { g.refuse(nil) }

// refuse closes the gate for a reason.
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

// run works on batches from a number on to before another. When stop ends, the batches under way are finished and the rest is
// left, as they are when the source cannot give the next one; the result is the first batch that was not done. The first failure stops
// all lines.
func (e *Engine) run(stop context.Context, w work, from, to int, r *results) (int, error) {
	if e.failure != nil {
		return from, e.failure
	}
	seg, err := e.segment(w, from, to, r)
	if err != nil {
		return from, err
	}
	unhook := context.AfterFunc(stop, seg.gate.stop)
	defer unhook()
	if e.failure = seg.work(e); e.failure != nil {
		return from, e.failure
	}
	for _, line := range seg.workers {
		line.traceWait(time.Now())
		if !w.evaluates {
			line.roles = line.machine.Roles()
		}
	}
	return seg.gate.end()
}

// begin lets a line begin a batch if its data can be had.
func (seg *segment) begin(batch int) bool {
	if p, ok := seg.task.source.(Preparer); ok {
		if err := p.Prepare(int64(batch)); err != nil {
			seg.gate.refuse(err)
			return false
		}
	}
	return seg.gate.begin(batch)
}

// segment makes the workers, and nothing that has to be closed.
func (e *Engine) segment(w work, from, to int, r *results) (*segment, error) {
	seg := &segment{task: w, gate: newGate(from, to), results: r}
	for _, l := range e.ranks[:w.replicas*e.Stages] {
		m, err := l.machine(w, from, to)
		if err != nil {
			for _, made := range seg.workers {
				made.machine.Close()
			}
			return nil, err
		}
		seg.workers = append(seg.workers, newWorker(l, seg, m))
	}
	return seg, nil
}

// shutdownTimeout is how long lines have to come to rest after one has failed. A device that takes longer, or for ever, keeps nobody from
// hearing of the failure: Close waits for it.
const shutdownTimeout = 500 * time.Millisecond

// work runs all lines to their end.
func (seg *segment) work(e *Engine) error {
	ctx, cancel := context.WithCancelCause(e.aborted)
	seg.ctx, seg.fail = ctx, cancel
	ended := make(chan struct{})
	go func() {
		var lines sync.WaitGroup
		for _, w := range seg.workers {
			lines.Go(w.operate)
		}
		lines.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(shutdownTimeout):
			e.stillRunning = ended
		}
	}
	err := context.Cause(ctx)
	cancel(nil)
	return err
}
