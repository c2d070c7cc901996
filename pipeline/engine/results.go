package engine

import (
	"fmt"
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
	Routing    []Routing // of a training batch: by layer with a mixture of experts
	// Replicas are the results of each replica, where replicas train on their own; nil: they train as one.
	Replicas []Measured
	Replica  int // its number, of one of Replicas
}

// Result is what a rank has measured: the losses or the routing of a microbatch, or the update of a batch.
type Result struct {
	Batch, Microbatch int       // of all replicas; no microbatch of an update
	Losses            []float32 // of the microbatch: the mean of each sequence; nil: routing or an update
	Norm, Scale       float64   // of the update: the norm of the gradient, and the loss scale, 0 if there is none
	Status            uint32    // of the update, see optim.StatusOutput
	Routing           []float32 // of the microbatch: see model.RoutingOutput; nil: losses or an update
	VirtualStage      int       // of the routing
}

// results collects the results of ranks and delivers them in the order of batches.
type results struct {
	out chan Measured // never closed: a rank may report a result after all others have stopped
	mu  sync.Mutex
	Collector
}

// Collector puts the results of ranks together.
type Collector struct {
	microbatches int  // per batch, of all replicas
	updates      bool // a batch is complete only with its update
	routers      []Router
	open         map[int]*partial
	next         int // batch to deliver
}

type partial struct {
	losses  [][]float32
	routing [][][]float32 // by router and microbatch
	missing int
	updated bool
	update  Result
}

// NewCollector makes a Collector for the batches from one on. microbatches is their number in a batch, of all replicas.
// updates reports whether batches have updates: in training, and not in an evaluation. In training routers report, too.
func NewCollector(from, microbatches int, updates bool, routers []Router) Collector {
	c := Collector{microbatches: microbatches, updates: updates, open: map[int]*partial{}, next: from}
	if updates {
		c.routers = routers
	}
	return c
}

func newResults(from, microbatches int, updates bool, routers []Router) *results {
	return &results{out: make(chan Measured, 16), Collector: NewCollector(from, microbatches, updates, routers)}
}

// add adds a result of a batch, and delivers the batches that are complete.
func (r *results) add(failed *failure, x Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	complete, err := r.Add(x)
	if err != nil {
		panic(err) // of a rank of this process
	}
	for _, m := range complete {
		select {
		case r.out <- m:
		case <-failed.occurred:
			return
		}
	}
}

// Add adds a result. It returns the batches that are complete with it, in order. A result that is no batch's, or that
// has been added before, is an error.
func (c *Collector) Add(x Result) (complete []Measured, err error) {
	if x.Batch < c.next {
		return nil, fmt.Errorf("result of batch %d: expected one from batch %d on", x.Batch, c.next)
	}
	p := c.open[x.Batch]
	if p == nil {
		p = c.newPartial()
		c.open[x.Batch] = p
	}
	switch {
	case x.Routing != nil:
		if err := c.addRouting(p, x); err != nil {
			return nil, err
		}
	case x.Losses == nil && !c.updates:
		return nil, fmt.Errorf("update of batch %d: expected losses alone", x.Batch)
	case x.Losses == nil && p.updated:
		return nil, fmt.Errorf("update of batch %d: found a second one", x.Batch)
	case x.Losses == nil:
		p.update, p.updated = x, true
	case x.Microbatch < 0 || x.Microbatch >= c.microbatches:
		return nil, fmt.Errorf("losses of microbatch %d of batch %d: expected 0 to %d", x.Microbatch, x.Batch, c.microbatches-1)
	case p.losses[x.Microbatch] != nil:
		return nil, fmt.Errorf("losses of microbatch %d of batch %d: found them a second time", x.Microbatch, x.Batch)
	default:
		p.losses[x.Microbatch] = x.Losses
	}
	p.missing--
	for p = c.open[c.next]; p != nil && p.missing == 0; p = c.open[c.next] {
		m := p.measured(c.next)
		for i, r := range c.routers {
			m.Routing = append(m.Routing, r.routing(p.routing[i])...)
		}
		complete = append(complete, m)
		delete(c.open, c.next)
		c.next++
	}
	return complete, nil
}

func (c *Collector) newPartial() *partial {
	p := &partial{losses: make([][]float32, c.microbatches), missing: c.microbatches * (1 + len(c.routers))}
	for range c.routers {
		p.routing = append(p.routing, make([][]float32, c.microbatches))
	}
	if c.updates {
		p.missing++
	}
	return p
}

// addRouting adds the routing of a microbatch.
func (c *Collector) addRouting(p *partial, x Result) error {
	i := slices.IndexFunc(c.routers, func(r Router) bool { return r.VirtualStage == x.VirtualStage })
	switch {
	case i < 0:
		return fmt.Errorf("routing of virtual stage %d of batch %d: expected none", x.VirtualStage, x.Batch)
	case x.Microbatch < 0 || x.Microbatch >= c.microbatches:
		return fmt.Errorf("routing of microbatch %d of batch %d: expected 0 to %d", x.Microbatch, x.Batch, c.microbatches-1)
	case len(x.Routing) != c.routers[i].Values:
		return fmt.Errorf("routing of microbatch %d of batch %d: found %d values, expected %d", x.Microbatch, x.Batch, len(x.Routing),
			c.routers[i].Values)
	case p.routing[i][x.Microbatch] != nil:
		return fmt.Errorf("routing of microbatch %d of batch %d: found it a second time", x.Microbatch, x.Batch)
	}
	p.routing[i][x.Microbatch] = x.Routing
	return nil
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
