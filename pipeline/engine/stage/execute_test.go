package stage

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// execute runs a program on symbols. What it reads must be of the batch and the microbatch that it is for.
func (rk *rank) execute(e Effect) error {
	switch e.Action.Kind {
	case schedule.GradNorm:
		return rk.norm(e)
	case schedule.Update:
		return rk.update(e)
	}
	a, from, to := e.Action, 0, 0
	from, to = rk.units(a.Chunk)
	s, id := &rk.slots[a.Chunk][e.Place.Slot], rk.id(a.Batch, a.Microbatch)
	first, last := from == 0, to == rk.model.units
	fail := func(what string, of any) error {
		return fmt.Errorf("rank %d: %v reads %s of %v", rk.number, e, what, of)
	}
	x := s.in
	switch {
	case first:
		x = rk.tokens(s.id)
	case s.inID != id:
		return fail("an activation", s.inID)
	}
	if (first || last) && s.id != id {
		return fail("tokens or targets", s.id)
	}
	updates := a.Batch
	if a.Microbatch < rk.stale {
		updates = max(0, a.Batch-rk.delay)
	}
	if a.Kind == schedule.Evaluate {
		updates = 0
	}
	var wrong error
	weights := func(param int) symbol {
		w := rk.buffers[e.Place.Weights][param]
		if w.updates != updates {
			wrong = fail("weights", w)
		}
		return w.symbol
	}
	forward := a.Kind == schedule.Forward || a.Kind == schedule.Evaluate
	if forward || rk.recompute {
		s.stash, s.out = rk.forward(from, to, x, weights)
		s.outID = id
	}
	if forward {
		if last {
			sum := &rk.loss[a.Batch%2]
			sum.symbol, sum.batch = accumulate(e.First, sum.symbol, rk.model.loss(s.out, id)), a.Batch
			rk.losses[a.Batch] = sum.symbol
		}
		return wrong
	}
	if s.outID != id || !last && a.Kind != schedule.WeightGrad && s.gradID != id {
		return fail("a stash and a gradient", []batchID{s.outID, s.gradID})
	}
	if of := rk.scales[e.Place.Scale]; of != max(0, a.Batch-rk.delay) {
		return fail("the loss scale", of)
	}
	if a.Kind != schedule.WeightGrad {
		g := s.gradOut
		if last {
			g = rk.lossGradient(s.out, id)
		}
		s.wstash, s.gradIn = rk.backward(from, to, g, s.stash, weights)
	}
	if a.Kind != schedule.InputGrad {
		for param, g := range rk.weightGradients(from, to, s.stash, s.wstash) {
			rk.add(e, rk.gradKey(param), g)
		}
	}
	return wrong
}

// add adds to a gradient.
func (rk *rank) add(e Effect, key int, g symbol) {
	buffer := rk.buffers[e.Place.Gradients]
	sum := buffer[key]
	if e.First {
		sum = value{batch: e.Action.Batch}
	}
	buffer[key] = value{symbol: accumulate(e.First, sum.symbol, g), batch: sum.batch, summed: sum.summed + 1, updates: -1}
}

// gradient is a replica's complete gradient of a parameter or of the head, for its owner.
func (rk *rank) gradient(e Effect, replica, param int) (symbol, error) {
	g := rk.buffers[e.Place.Gradients][rk.gradKey(param)]
	sender := replica*rk.stages() + rk.number%rk.stages()
	if param == head {
		sender = (replica+1)*rk.stages() - 1
	}
	if sender != rk.number {
		g = rk.contributions[sender][param]
	}
	if g.batch != e.Action.Batch || g.summed != rk.microbatches {
		return 0, fmt.Errorf("rank %d: %v reads gradients %+v of parameter %d in replica %d", rk.number, e, g, param, replica)
	}
	return g.symbol, nil
}

// totals are the gradients of the rank's own parameters, by parameter.
func (rk *rank) totals(e Effect) (totals map[int]symbol, err error) {
	totals = map[int]symbol{}
	for _, param := range rk.owned() {
		totals[param] = rk.total(param, func(r, p int) symbol {
			g, wrong := rk.gradient(e, r, p)
			if wrong != nil {
				err = wrong
			}
			return g
		})
	}
	return totals, err
}

func (rk *rank) norm(e Effect) error {
	totals, err := rk.totals(e)
	norms := map[int]value{}
	for param, g := range totals {
		norms[param] = value{symbol: norm(param, g), batch: e.Action.Batch}
	}
	if slices.Contains(rk.owned(), rk.model.units-1) {
		var loss []symbol
		for r := range rk.replicas {
			of := rk.loss[e.Action.Batch%2]
			if r > 0 {
				of = rk.contributions[r*rk.stages()+rk.number][lossKey]
			}
			if of.batch != e.Action.Batch {
				return fmt.Errorf("rank %d: %v reads the loss of batch %d", rk.number, e, of.batch)
			}
			loss = append(loss, of.symbol)
		}
		norms[lossKey] = value{symbol: apply("loss of replicas", loss), batch: e.Action.Batch}
		rk.losses[e.Action.Batch] = norms[lossKey].symbol
	}
	rk.norms[rk.number] = norms
	return err
}

func (rk *rank) update(e Effect) error {
	all := map[int]symbol{}
	for _, norms := range rk.norms {
		for param, v := range norms {
			if v.batch != e.Action.Batch {
				return fmt.Errorf("rank %d: %v reads norms of batch %d", rk.number, e, v.batch)
			}
			all[param] = v.symbol
		}
	}
	var norms []symbol
	for param := range rk.model.units {
		norms = append(norms, all[param])
	}
	totals, err := rk.totals(e)
	into := e.Place.Weights
	if rk.delay == 1 {
		into = e.Place.Gradients
	}
	rk.scales[into] = e.Action.Batch + 1
	for param, g := range totals {
		x := rk.buffers[e.Place.Weights][param]
		if x.updates != e.Action.Batch {
			return fmt.Errorf("rank %d: %v reads weights with %d updates", rk.number, e, x.updates)
		}
		rk.buffers[into][param] = value{symbol: step(param, x.symbol, g, norms, all[lossKey]), updates: x.updates + 1}
	}
	return err
}
