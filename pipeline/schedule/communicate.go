package schedule

import (
	"fmt"
	"iter"
	"strings"
)

// Capacity is how many messages a channel holds: a send waits while as many are not yet received. What is sound with one message is
// sound with more. A channel is what one stage sends to another of one kind (activations or gradients), in order.
const Capacity = 1

// Communicate adds to a schedule of computation what the stages tell each other. A send follows at once what it sends. A receive
// stands right before what needs it, or earlier: where messages come in another order than they are used, or where the
// stage would keep its neighbours from sending and they it. The exchange of a batch stands at the batch's update.
// It is an error when the schedule's own order cannot be kept.
func Communicate(s *Schedule, l Links) (*Schedule, error) {
	if err := s.checkLines(); err != nil {
		return nil, err
	}
	g := s.generator()
	c, err := g.Communicate(l)
	if err != nil {
		return nil, err
	}
	out := c.head
	out.Lines = make([][]Action, s.Stages)
	if err := g.weave(l, func(stage int, a Action) bool {
		out.Lines[stage] = append(out.Lines[stage], a)
		return true
	}); err != nil {
		return nil, err
	}
	return &out, nil
}

// generator reads the lines of a schedule.
func (s *Schedule) generator() *Generator {
	g := &Generator{head: *s}
	g.head.Lines = nil
	g.line = func(stage int, yield func(Action) bool) {
		for _, a := range s.Lines[stage] {
			if !yield(a) {
				return
			}
		}
	}
	return g
}

// Communicate is as the function of that name, with lines that still cost no memory. Lines of a schedule whose own order cannot be
// kept panic, which those of New and of a Repeat of a schedule that validates never do.
func (g *Generator) Communicate(l Links) (*Generator, error) {
	if g.head.Links != nil {
		return nil, fmt.Errorf("schedule %s: found communication already, expected computation only", g.head.Name)
	}
	if err := g.head.checkLinks(l); err != nil {
		return nil, err
	}
	c := &Generator{head: g.head}
	c.head.Links = &l
	c.line = func(stage int, yield func(Action) bool) {
		err := g.weave(l, func(of int, a Action) bool { return of != stage || yield(a) })
		if err != nil {
			panic(err)
		}
	}
	return c, nil
}

// exchange is what stands in a line in place of the update of a batch.
func (s *Schedule) exchange(l Links, stage int) (kinds []Kind) {
	if l.Replica {
		return []Kind{SendGrads, RecvWeights}
	}
	tied := l.Tied && s.Stages > 1
	copies, owner := tied && stage == s.Stages-1, tied && stage == 0 || l.Copied
	for _, k := range []struct {
		kind Kind
		is   bool
	}{{SendGrads, copies}, {RecvGrads, owner}, {Vote, s.Delay >= 0}, {Update, true}, {SendWeights, owner}, {RecvWeights, copies}} {
		if k.is {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}

// message is what a microbatch's part sends to a neighbour, by what the receiver makes of it.
type message struct{ microbatch, batch, chunk int }

// neighbour is where a part's activations go (step +1) or come from (−1): stage and chunk. It is false beyond the ends of the
// model. With one stage a chunk's neighbours are on the same line, which then sends to itself.
func (s *Schedule) neighbour(stage, chunk, step int) (to, toChunk int, is bool) {
	q := s.part(stage, chunk) + step
	if q < 0 || q >= s.Parts() {
		return 0, 0, false
	}
	return q % s.Stages, q / s.Stages, true
}

// needs is what must have come before an action of computation: the kind of receive, and from where.
func (s *Schedule) needs(stage int, a Action) (recv Kind, from int, is bool) {
	switch a.Kind {
	case Forward, Evaluate:
		from, _, is = s.neighbour(stage, a.Chunk, -1)
		return RecvForward, from, is
	case Backward, InputGrad:
		from, _, is = s.neighbour(stage, a.Chunk, +1)
		return RecvBackward, from, is
	}
	return 0, 0, false
}

// gives is what an action of computation sends, to which stage and chunk.
func (s *Schedule) gives(stage int, a Action) (send Kind, to, chunk int, is bool) {
	switch a.Kind {
	case Forward, Evaluate:
		to, chunk, is = s.neighbour(stage, a.Chunk, +1)
		return SendForward, to, chunk, is
	case Backward, InputGrad:
		to, chunk, is = s.neighbour(stage, a.Chunk, -1)
		return SendBackward, to, chunk, is
	}
	return 0, 0, 0, false
}

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
	come  map[message]bool // received before it was needed; forward and backward of a chunk tell themselves apart by from
	back  map[message]bool
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
	for {
		moved, ended := false, 0
		for s := range w.lines {
			for !w.lines[s].ended && w.step(s) {
				moved = true
				if w.stopped {
					return nil
				}
			}
			if w.lines[s].ended {
				ended++
			}
		}
		if ended == len(w.lines) {
			return nil
		}
		if !moved && !w.relieve() {
			return w.stuck()
		}
	}
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
			return !w.stopped
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
		what := "a free channel"
		if recv, from, is := w.needs(s, line.at); is && line.phase == receiving {
			what = fmt.Sprintf("%v from stage %d", Action{Kind: recv, Microbatch: line.at.Microbatch, Batch: line.at.Batch, Chunk: line.at.Chunk}, from)
		} else if need, of := w.awaits(w.links, s, line.at.Kind); of != nil && line.phase == receiving {
			what = fmt.Sprintf("%v of stages %v", Action{Kind: need, Batch: line.at.Batch}, of)
		}
		where = append(where, fmt.Sprintf("stage %d waits at %v for %s", s, line.at, what))
	}
	return fmt.Errorf("schedule %s: deadlock: %s", w.Name, strings.Join(where, "; "))
}
