package engine

import (
	"context"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/optim"
)

// Measured is what a batch tells: its mean loss in nats per token and the norm of its gradient before clipping, at the weights
// that it was computed at, and whether its update was applied.
type Measured struct {
	Batch      int
	Loss       float64
	GradNorm   float64
	OK         bool
	Overflowed bool      // it was not applied, for what a smaller loss scale may mend
	Scale      float64   // the loss scale that it was computed with; 0: there is none
	Losses     []float32 // of an evaluation: each sequence's mean
}

// results gathers what lines measure and hands it on in the order of the batches.
type results struct {
	microbatches int           // of all replicas
	updates      bool          // a batch is complete with its update
	out          chan Measured // never closed: a line may tell of something after all others have given up

	mu   sync.Mutex
	open map[int]*partial
	next int // batch to hand on
}

type partial struct {
	losses  [][]float32
	missing int
	updateResult
}

// updateResult is what an update tells of its batch.
type updateResult struct {
	norm, scale float64
	status      uint32 // see optim.RefusedOutput
}

func newResults(from, microbatches int, updates bool) *results {
	return &results{microbatches: microbatches, updates: updates, out: make(chan Measured, 16), open: map[int]*partial{}, next: from}
}

func (r *results) losses(ctx context.Context, batch, microbatch int, losses []float32) {
	r.note(ctx, batch, func(p *partial) { p.losses[microbatch] = losses })
}

func (r *results) update(ctx context.Context, batch int, v updateResult) {
	r.note(ctx, batch, func(p *partial) { p.updateResult = v })
}

func (r *results) note(ctx context.Context, batch int, f func(*partial)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.open[batch]
	if p == nil {
		p = &partial{losses: make([][]float32, r.microbatches), missing: r.microbatches}
		if r.updates {
			p.missing++
		}
		r.open[batch] = p
	}
	f(p)
	p.missing--
	for p = r.open[r.next]; p != nil && p.missing == 0; p = r.open[r.next] {
		select {
		case r.out <- p.measured(r.next):
		case <-ctx.Done():
			return
		}
		delete(r.open, r.next)
		r.next++
	}
}

func (p *partial) measured(batch int) Measured {
	m := Measured{Batch: batch, GradNorm: p.norm, OK: p.status == optim.Applied, Overflowed: p.status == optim.Overflowed, Scale: p.scale,
		Losses: slices.Concat(p.losses...)}
	for _, l := range m.Losses {
		m.Loss += float64(l) / float64(len(m.Losses))
	}
	return m
}
