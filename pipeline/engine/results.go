package engine

import (
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/optim"
)

// Measured is the result of a batch: its mean loss in nats per token and the norm of its gradient before clipping, both
// at the weights of its forward, and whether its update was applied.
type Measured struct {
	Batch      int
	Loss       float64
	GradNorm   float64
	OK         bool
	Overflowed bool      // it was not applied, and a smaller loss scale may help
	Scale      float64   // its loss scale; 0: none
	Losses     []float32 // of an evaluation: the mean of each sequence
}

// results collects the results of ranks and delivers them in the order of batches.
type results struct {
	microbatches int           // per batch, of all replicas
	updates      bool          // a batch is complete only with its update
	out          chan Measured // never closed: a rank may report a result after all others have stopped

	mu   sync.Mutex
	open map[int]*partial
	next int // batch to deliver
}

type partial struct {
	losses  [][]float32
	missing int
	updateResult
}

// updateResult is the result of an update.
type updateResult struct {
	norm, scale float64
	status      uint32 // see optim.RefusedOutput
}

func newResults(from, microbatches int, updates bool) *results {
	return &results{microbatches: microbatches, updates: updates, out: make(chan Measured, 16), open: map[int]*partial{}, next: from}
}

func (r *results) losses(failed *failure, batch, microbatch int, losses []float32) {
	r.note(failed, batch, func(p *partial) { p.losses[microbatch] = losses })
}

func (r *results) update(failed *failure, batch int, v updateResult) {
	r.note(failed, batch, func(p *partial) { p.updateResult = v })
}

func (r *results) note(failed *failure, batch int, f func(*partial)) {
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
		case <-failed.occurred:
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
