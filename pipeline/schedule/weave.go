package schedule

import (
	"fmt"
	"iter"
	"strings"
)

// weaver runs all lines side by side, without time, and tells each action and each message as it happens.
type weaver struct {
	*Schedule
	links    Links
	lines    []weaving
	channels map[channel][]message // what is sent and not yet received
	emit     func(stage int, a Action) bool
	stopped  bool // emit has had enough
}

type channel struct {
	recv     Kind // RecvForward or RecvBackward
	from, to int
}

// weaving is where a line is.
type weaving struct {
	next  func() (Action, bool)
	at    Action // what is under way
	rest  []Kind // of the exchange, after at
	phase phase
	come  map[message]bool  // activations that were received, and are not yet used
	back  map[message]bool  // gradients, likewise
	done  [len(letters)]int // how many batches' actions of the exchange, by kind
	ended bool
}

type phase uint8

const (
	fetching  phase = iota // of the next action
	receiving              // what it needs
	sending                // what it gives
)

// weave runs the lines. It is an error when they cannot all come to their end.
func (g *Generator) weave(l Links, emit func(stage int, a Action) bool) error {
	w := &weaver{Schedule: &g.head, links: l, channels: map[channel][]message{}, emit: emit}
	for s := range g.head.Stages {
		next, stop := iter.Pull(g.Line(s))
		defer stop()
		w.lines = append(w.lines, weaving{next: next, come: map[message]bool{}, back: map[message]bool{}})
	}
	for ended := 0; ended < len(w.lines); {
		moved := false
		ended = 0
		for s := range w.lines {
			for !w.lines[s].ended && !w.stopped && w.step(s) {
				moved = true
			}
			if w.lines[s].ended {
				ended++
			}
		}
		moved = moved || ended == len(w.lines) || w.relieve()
		if w.stopped {
			return nil
		}
		if !moved {
			return w.stuck()
		}
	}
	return nil
}

// step takes a line a little further; false where it must wait.
func (w *weaver) step(s int) bool {
	line := &w.lines[s]
	switch line.phase {
	case fetching:
		w.fetch(s)
	case receiving:
		if line.at.Kind.PerBatch() {
			return w.exchanged(s)
		}
		if recv, from, is := w.needs(s, line.at); is {
			m := message{line.at.Microbatch, line.at.Batch, line.at.Chunk}
			if !line.early(recv)[m] {
				return w.receive(s, channel{recv, from, s})
			}
			delete(line.early(recv), m)
		}
		w.tell(s, line.at)
		line.phase = sending
	case sending:
		if send, to, chunk, is := w.gives(s, line.at); is {
			c := channel{send - 1, s, to} // a receive stands before its send in the list of kinds
			if len(w.channels[c]) >= Capacity {
				return false
			}
			w.channels[c] = append(w.channels[c], message{line.at.Microbatch, line.at.Batch, chunk})
			w.tell(s, Action{Kind: send, Microbatch: line.at.Microbatch, Batch: line.at.Batch, Chunk: line.at.Chunk})
		}
		line.phase = fetching
	}
	return true
}

func (w *weaver) fetch(s int) {
	line := &w.lines[s]
	if len(line.rest) > 0 {
		line.at.Kind, line.rest = line.rest[0], line.rest[1:]
		line.phase = receiving
		return
	}
	a, ok := line.next()
	if !ok {
		line.ended = true
		return
	}
	line.at, line.phase = a, receiving
	if a.Kind == Update {
		kinds := w.exchange(w.links, s)
		line.at.Kind, line.rest = kinds[0], kinds[1:]
	}
}

func (line *weaving) early(recv Kind) map[message]bool {
	if recv == RecvForward {
		return line.come
	}
	return line.back
}

// receive takes the next message of a channel, whether it is the one that is waited for or not.
func (w *weaver) receive(s int, c channel) bool {
	queue := w.channels[c]
	if len(queue) == 0 {
		return false
	}
	m := queue[0]
	w.channels[c] = append(queue[:0], queue[1:]...)
	w.lines[s].early(c.recv)[m] = true
	w.tell(s, Action{Kind: c.recv, Microbatch: m.microbatch, Batch: m.batch, Chunk: m.chunk})
	return true
}

// exchanged does an action of the exchange if what it needs has been done.
func (w *weaver) exchanged(s int) bool {
	line := &w.lines[s]
	need, of := w.awaits(w.links, s, line.at.Kind)
	for _, other := range of {
		if w.lines[other].done[need] <= line.at.Batch {
			return false
		}
	}
	line.done[line.at.Kind] = line.at.Batch + 1
	w.tell(s, line.at)
	line.phase = fetching
	return true
}

// awaits is what which lines must have done of a batch before a line can do its action of the exchange.
func (s *Schedule) awaits(l Links, stage int, kind Kind) (need Kind, of []int) {
	tied := l.Tied && s.Stages > 1 && !l.Replica
	switch {
	case kind == Update && s.Delay >= 0 && !l.Replica:
		for i := range s.Stages {
			of = append(of, i)
		}
		return Vote, of
	case kind == RecvGrads && tied && stage == 0:
		return SendGrads, []int{s.Stages - 1}
	case kind == RecvWeights && tied && stage == s.Stages-1:
		return SendWeights, []int{0}
	}
	return kind, nil
}

// relieve lets a stage that must wait take a message that its sender cannot get rid of.
func (w *weaver) relieve() bool {
	for s := range w.lines {
		line := &w.lines[s]
		if line.ended || line.phase != sending {
			continue
		}
		send, to, _, _ := w.gives(s, line.at)
		if !w.lines[to].ended && w.receive(to, channel{send - 1, s, to}) {
			return true
		}
	}
	return false
}

func (w *weaver) tell(s int, a Action) {
	if !w.stopped && !w.emit(s, a) {
		w.stopped = true
	}
}

// stuck says where each line waits and for what.
func (w *weaver) stuck() error {
	var where []string
	for s, line := range w.lines {
		if line.ended {
			continue
		}
		var what string // not a free channel: relieve sees to that
		if recv, from, is := w.needs(s, line.at); is {
			what = fmt.Sprintf("%v from stage %d", Action{Kind: recv, Microbatch: line.at.Microbatch, Batch: line.at.Batch, Chunk: line.at.Chunk}, from)
		} else {
			need, of := w.awaits(w.links, s, line.at.Kind)
			what = fmt.Sprintf("%v of stages %v", Action{Kind: need, Batch: line.at.Batch}, of)
		}
		where = append(where, fmt.Sprintf("stage %d waits at %v for %s", s, line.at, what))
	}
	return fmt.Errorf("schedule %s: deadlock: %s", w.Name, strings.Join(where, "; "))
}
