package stage

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// execute runs a program on symbols. What it reads must be of the batch and the microbatch that it is for.
func (l *line) execute(e Effect) error {
	switch e.Action.Kind {
	case schedule.GradNorm:
		return l.vote(e)
	case schedule.Update:
		return l.update(e)
	}
	a, from, to := e.Action, 0, 0
	from, to = l.units(a.Chunk)
	s, id := &l.slots[a.Chunk][e.Place.Slot], l.id(a.Batch, a.Microbatch)
	first, last := from == 0, to == l.model.units
	fail := func(what string, of any) error {
		return fmt.Errorf("line %d: %v reads %s of %v", l.number, e, what, of)
	}
	x := s.in
	switch {
	case first:
		x = l.tokens(s.id)
	case s.inID != id:
		return fail("an activation", s.inID)
	}
	if (first || last) && s.id != id {
		return fail("tokens or targets", s.id)
	}
	updates := max(0, a.Batch-l.delay)
	if a.Kind == schedule.Evaluate {
		updates = 0
	}
	var wrong error
	weights := func(param int) symbol {
		w := l.buffers[e.Place.Weights][param]
		if w.updates != updates {
			wrong = fail("weights", w)
		}
		return w.symbol
	}
	forward := a.Kind == schedule.Forward || a.Kind == schedule.Evaluate
	if forward || l.recompute {
		s.stash, s.out = l.forward(from, to, x, weights)
		s.outID = id
	}
	if forward {
		if last {
			sum := &l.loss[a.Batch%2]
			sum.symbol, sum.batch = accumulate(e.First, sum.symbol, l.model.loss(s.out, id)), a.Batch
			l.losses[a.Batch] = sum.symbol
		}
		return wrong
	}
	if s.outID != id || !last && a.Kind != schedule.WeightGrad && s.gradID != id {
		return fail("a stash and a gradient", []batchID{s.outID, s.gradID})
	}
	if a.Kind != schedule.WeightGrad {
		g := s.gradOut
		if last {
			g = l.lossGradient(s.out, id)
		}
		s.wstash, s.gradIn = l.backward(from, to, g, s.stash, weights)
	}
	if a.Kind != schedule.InputGrad {
		for param, g := range l.weightGradients(from, to, s.stash, s.wstash) {
			l.add(e, l.gradKey(param), g)
		}
	}
	return wrong
}

// add adds to a gradient.
func (l *line) add(e Effect, key int, g symbol) {
	buffer := l.buffers[e.Place.Gradients]
	sum := buffer[key]
	if e.First {
		sum = value{batch: e.Action.Batch}
	}
	buffer[key] = value{symbol: accumulate(e.First, sum.symbol, g), batch: sum.batch, summed: sum.summed + 1, updates: -1}
}

// gradient is a replica's complete gradient of a parameter or of the head, for its owner.
func (l *line) gradient(e Effect, replica, param int) (symbol, error) {
	g := l.buffers[e.Place.Gradients][l.gradKey(param)]
	sender := replica*l.stages() + l.number%l.stages()
	if param == head {
		sender = (replica+1)*l.stages() - 1
	}
	if sender != l.number {
		g = l.contributions[sender][param]
	}
	if g.batch != e.Action.Batch || g.summed != l.microbatches {
		return 0, fmt.Errorf("line %d: %v reads gradients %+v of parameter %d in replica %d", l.number, e, g, param, replica)
	}
	return g.symbol, nil
}

// totals are the gradients of the line's own parameters, by parameter.
func (l *line) totals(e Effect) (totals map[int]symbol, err error) {
	totals = map[int]symbol{}
	for _, param := range l.owned() {
		totals[param] = l.total(param, func(r, p int) symbol {
			g, wrong := l.gradient(e, r, p)
			if wrong != nil {
				err = wrong
			}
			return g
		})
	}
	return totals, err
}

func (l *line) vote(e Effect) error {
	totals, err := l.totals(e)
	votes := map[int]value{}
	for param, g := range totals {
		votes[param] = value{symbol: vote(param, g), batch: e.Action.Batch}
	}
	if slices.Contains(l.owned(), l.model.units-1) {
		var loss []symbol
		for r := range l.replicas {
			of := l.loss[e.Action.Batch%2]
			if r > 0 {
				of = l.contributions[r*l.stages()+l.number][lossKey]
			}
			if of.batch != e.Action.Batch {
				return fmt.Errorf("line %d: %v reads the loss of batch %d", l.number, e, of.batch)
			}
			loss = append(loss, of.symbol)
		}
		votes[lossKey] = value{symbol: apply("loss of replicas", loss), batch: e.Action.Batch}
		l.losses[e.Action.Batch] = votes[lossKey].symbol
	}
	l.votes[l.number] = votes
	return err
}

func (l *line) update(e Effect) error {
	all := map[int]symbol{}
	for _, votes := range l.votes {
		for param, v := range votes {
			if v.batch != e.Action.Batch {
				return fmt.Errorf("line %d: %v reads votes of batch %d", l.number, e, v.batch)
			}
			all[param] = v.symbol
		}
	}
	var votes []symbol
	for param := range l.model.units {
		votes = append(votes, all[param])
	}
	totals, err := l.totals(e)
	into := e.Place.Weights
	if l.delay == 1 {
		into = e.Place.Gradients
	}
	for param, g := range totals {
		x := l.buffers[e.Place.Weights][param]
		if x.updates != e.Action.Batch {
			return fmt.Errorf("line %d: %v reads weights with %d updates", l.number, e, x.updates)
		}
		l.buffers[into][param] = value{symbol: step(param, x.symbol, g, votes, all[lossKey]), updates: x.updates + 1}
	}
	return err
}
