package schedule

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// inserter runs all stages of a schedule of computation side by side, without time, and inserts the communication that
// they need.
type inserter struct {
	*Schedule
	copies   Copies
	stages   []progress
	channels map[channel][]message // sent and not yet received
	emit     func(stage int, a Action) bool
	stopped  bool // emit returned false
}

type channel struct {
	recv     Kind // RecvForward or RecvBackward
	from, to int
}

// progress is the position of a stage.
type progress struct {
	next        func() (Action, bool)
	current     Action // the action being inserted
	rest        []Kind // of the exchange, after current
	phase       phase
	activations map[message]bool  // received and not yet used
	gradients   map[message]bool  // likewise
	done        [len(letters)]int // by kind: of how many batches the exchange is done
	ended       bool
}

type phase uint8

const (
	fetching  phase = iota // the next action
	receiving              // the message that it needs
	sending                // the message that it produces
)

// insertCommunication passes the actions of all stages to emit, communication included, until emit returns false. It
// returns an error if the stages deadlock.
func (g *Generator) insertCommunication(l Copies, emit func(stage int, a Action) bool) error {
	w := &inserter{Schedule: &g.head, copies: l, channels: map[channel][]message{}, emit: emit}
	for s := range g.head.Stages {
		next, stop := iter.Pull(g.Actions(s))
		defer stop()
		w.stages = append(w.stages, progress{next: next, activations: map[message]bool{}, gradients: map[message]bool{}})
	}
	for ended := 0; ended < len(w.stages); {
		moved := false
		ended = 0
		for s := range w.stages {
			for !w.stages[s].ended && !w.stopped && w.step(s) {
				moved = true
			}
			if w.stages[s].ended {
				ended++
			}
		}
		moved = moved || ended == len(w.stages) || w.receiveEarly()
		if w.stopped {
			return nil
		}
		if !moved {
			return w.deadlock()
		}
	}
	return nil
}

// step advances a stage. It returns false if the stage must wait.
func (w *inserter) step(s int) bool {
	p := &w.stages[s]
	switch p.phase {
	case fetching:
		w.fetch(s)
	case receiving:
		if p.current.Kind.PerBatch() {
			return w.stepExchange(s)
		}
		if recv, from, is := w.receives(s, p.current); is {
			m := message{p.current.Microbatch, p.current.Batch, p.current.Chunk}
			if !p.received(recv)[m] {
				return w.receive(s, channel{recv, from, s})
			}
			delete(p.received(recv), m)
		}
		w.output(s, p.current)
		p.phase = sending
	case sending:
		if send, to, chunk, is := w.sends(s, p.current); is {
			c := channel{send - 1, s, to} // a receive stands before its send in the list of kinds
			if len(w.channels[c]) >= Capacity {
				return false
			}
			w.channels[c] = append(w.channels[c], message{p.current.Microbatch, p.current.Batch, chunk})
			w.output(s, Action{Kind: send, Microbatch: p.current.Microbatch, Batch: p.current.Batch, Chunk: p.current.Chunk})
		}
		p.phase = fetching
	}
	return true
}

func (w *inserter) fetch(s int) {
	p := &w.stages[s]
	if len(p.rest) > 0 {
		p.current.Kind, p.rest = p.rest[0], p.rest[1:]
		p.phase = receiving
		return
	}
	a, ok := p.next()
	if !ok {
		p.ended = true
		return
	}
	p.current, p.phase = a, receiving
	if a.Kind == Update {
		kinds := w.exchange(w.copies, s)
		p.current.Kind, p.rest = kinds[0], kinds[1:]
	}
}

func (p *progress) received(recv Kind) map[message]bool {
	if recv == RecvForward {
		return p.activations
	}
	return p.gradients
}

// receive receives the next message of a channel, whether or not it is the one that the stage needs.
func (w *inserter) receive(s int, c channel) bool {
	queue := w.channels[c]
	if len(queue) == 0 {
		return false
	}
	m := queue[0]
	w.channels[c] = append(queue[:0], queue[1:]...)
	w.stages[s].received(c.recv)[m] = true
	w.output(s, Action{Kind: c.recv, Microbatch: m.microbatch, Batch: m.batch, Chunk: m.chunk})
	return true
}

// stepExchange emits an action of the exchange if the actions that it needs are done.
func (w *inserter) stepExchange(s int) bool {
	p := &w.stages[s]
	need, of := w.exchangeNeeds(w.copies, s, p.current.Kind)
	if slices.ContainsFunc(of, func(other int) bool { return w.stages[other].done[need] <= p.current.Batch }) {
		return false
	}
	p.done[p.current.Kind] = p.current.Batch + 1
	w.output(s, p.current)
	p.phase = fetching
	return true
}

// exchangeNeeds is the kind of action that an action of the exchange waits for, and the stages that must have done it.
func (s *Schedule) exchangeNeeds(l Copies, stage int, kind Kind) (need Kind, of []int) {
	tied := l.Tied && s.Stages > 1 && !l.Replica
	switch {
	case kind == Update && s.Delay >= 0 && !l.Replica:
		for i := range s.Stages {
			of = append(of, i)
		}
		return GradNorm, of
	case kind == RecvGrads && tied && stage == 0:
		return SendGrads, []int{s.Stages - 1}
	case kind == RecvWeights && tied && stage == s.Stages-1:
		return SendWeights, []int{0}
	}
	return kind, nil
}

// receiveEarly resolves a wait in a circle: it lets a waiting stage receive a message whose sender waits for a free
// channel.
func (w *inserter) receiveEarly() bool {
	for s := range w.stages {
		p := &w.stages[s]
		if p.ended || p.phase != sending {
			continue
		}
		send, to, _, _ := w.sends(s, p.current)
		if !w.stages[to].ended && w.receive(to, channel{send - 1, s, to}) {
			return true
		}
	}
	return false
}

func (w *inserter) output(s int, a Action) {
	if !w.stopped && !w.emit(s, a) {
		w.stopped = true
	}
}

// deadlock is an error that lists where each stage waits and for what.
func (w *inserter) deadlock() error {
	var where []string
	for s, p := range w.stages {
		if p.ended {
			continue
		}
		var what string // never a free channel: receiveEarly resolves that
		if recv, from, is := w.receives(s, p.current); is {
			what = fmt.Sprintf("%v from stage %d", Action{Kind: recv, Microbatch: p.current.Microbatch, Batch: p.current.Batch,
				Chunk: p.current.Chunk}, from)
		} else {
			need, of := w.exchangeNeeds(w.copies, s, p.current.Kind)
			what = fmt.Sprintf("%v of stages %v", Action{Kind: need, Batch: p.current.Batch}, of)
		}
		where = append(where, fmt.Sprintf("stage %d waits at %v for %s", s, p.current, what))
	}
	return fmt.Errorf("schedule %s: deadlock: %s", w.Name, strings.Join(where, "; "))
}
