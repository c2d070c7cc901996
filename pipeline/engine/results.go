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

// Result is what a rank has measured: the losses of a microbatch, or the update of a batch.
type Result struct {
	Batch, Microbatch int       // of all replicas; no microbatch of an update
	Losses            []float32 // of the microbatch: the mean of each sequence; nil: an update
	Norm, Scale       float64   // of the update: the norm of the gradient, and the loss scale, 0 if there is none
	Status            uint32    // of the update, see optim.RefusedOutput
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
	update  Result
}

func newResults(from, microbatches int, updates bool) *results {
	return &results{microbatches: microbatches, updates: updates, out: make(chan Measured, 16), open: map[int]*partial{}, next: from}
}

// add adds a result of a batch, and delivers the batches that are complete.
func (r *results) add(failed *failure, x Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.open[x.Batch]
	if p == nil {
		p = &partial{losses: make([][]float32, r.microbatches), missing: r.microbatches}
		if r.updates {
			p.missing++
		}
		r.open[x.Batch] = p
	}
	if x.Losses != nil {
		p.losses[x.Microbatch] = x.Losses
	} else {
		p.update = x
	}
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
	u := p.update
	m := Measured{Batch: batch, GradNorm: u.Norm, OK: u.Status == optim.Applied, Overflowed: u.Status == optim.Overflowed, Scale: u.Scale,
		Losses: slices.Concat(p.losses...)}
	for _, l := range m.Losses {
		m.Loss += float64(l) / float64(len(m.Losses))
	}
	return m
}
