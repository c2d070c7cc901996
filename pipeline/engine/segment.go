package engine

import (
	"context"
	"sync"
)

// segment is work between two moments at which the pipeline is empty.
type segment struct {
	work
	ctx     context.Context
	cancel  context.CancelCauseFunc
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
	begun   int // the newest batch
	limit   int // the first that is not begun
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
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun+1 < g.limit {
		g.limit = g.begun + 1
	}
	close(g.limited)
}

func (g *gate) end() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit
}

// run works on batches from a number on to before another. When stop ends, the batches under way are finished and the rest is
// left; the result is the first batch that was not done. The first failure stops all lines.
func (e *Engine) run(stop context.Context, w work, from, to int, r *results) (int, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	seg := &segment{work: w, ctx: ctx, cancel: cancel, gate: newGate(from, to), results: r}
	for _, l := range e.lines[:w.replicas*e.Stages] {
		m, err := l.machine(w, from, to)
		if err != nil {
			return from, err
		}
		defer m.Close()
		seg.workers = append(seg.workers, newWorker(l, seg, m))
	}
	unhook := context.AfterFunc(stop, seg.gate.stop)
	defer unhook()
	var lines sync.WaitGroup
	for _, w := range seg.workers {
		lines.Go(func() { seg.operate(w) })
	}
	lines.Wait()
	if err := context.Cause(ctx); err != nil {
		return from, err
	}
	for _, line := range seg.workers {
		if !w.evaluates {
			line.roles = line.machine.Roles()
		}
	}
	return seg.gate.end(), nil
}

// operate runs a worker's two goroutines.
func (seg *segment) operate(w *worker) {
	var landing sync.WaitGroup
	landing.Go(func() {
		if err := w.wait(); err != nil {
			seg.cancel(err)
		}
	})
	if err := w.run(seg.ctx); err != nil {
		seg.cancel(err)
	}
	close(w.flights)
	landing.Wait()
}
