package schedule

import "fmt"

// Capacity is how many messages a channel holds: a send waits while as many are not yet received. What is sound with one message is
// sound with more. A channel is what one stage sends to another of one kind (activations or gradients), in order.
const Capacity = 1

// Communicate adds to a schedule of computation what the stages tell each other. A send follows at once what it sends. A receive
// stands right before what needs it, or earlier: where messages come in another order than they are used, or where a stage and its
// neighbour would wait for each other to take what they send. The exchange of a batch stands at the batch's update.
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
