package schedule

import "fmt"

// Capacity is the number of messages that a channel holds: a send waits while as many are not yet received. A schedule
// that is sound with one message is sound with more. A channel carries messages of one kind, activations or gradients,
// from one stage to another, in order.
const Capacity = 1

// Communicate inserts communication into a schedule of computation. A send follows directly the action that produces
// its data. A receive stands directly before the action that needs it, or earlier if messages come in another order
// than they are used, or if a stage and its neighbor would otherwise wait for each other to receive. The exchange of a
// batch stands at the update of the batch. Communicate returns an error if the schedule deadlocks.
func Communicate(s *Schedule, l Copies) (*Schedule, error) {
	if err := s.checkActions(); err != nil {
		return nil, err
	}
	g := s.generator()
	c, err := g.Communicate(l)
	if err != nil {
		return nil, err
	}
	out := c.head
	out.Actions = make([][]Action, s.Stages)
	if err := g.insertCommunication(l, func(stage int, a Action) bool {
		out.Actions[stage] = append(out.Actions[stage], a)
		return true
	}); err != nil {
		return nil, err
	}
	return &out, nil
}

// generator yields the action lists of a schedule.
func (s *Schedule) generator() *Generator {
	g := &Generator{head: *s}
	g.head.Actions = nil
	g.actions = func(stage int, yield func(Action) bool) {
		for _, a := range s.Actions[stage] {
			if !yield(a) {
				return
			}
		}
	}
	return g
}

// Communicate inserts communication as the function Communicate does, but the result yields its actions one by one. If
// the schedule deadlocks, yielding panics. Schedules of New and of Repeat never deadlock.
func (g *Generator) Communicate(l Copies) (*Generator, error) {
	if g.head.Copies != nil {
		return nil, fmt.Errorf("schedule %s: found communication already, expected computation only", g.head.Name)
	}
	if err := g.head.checkCopies(l); err != nil {
		return nil, err
	}
	c := &Generator{head: g.head}
	c.head.Copies = &l
	c.actions = func(stage int, yield func(Action) bool) {
		err := g.insertCommunication(l, func(of int, a Action) bool { return of != stage || yield(a) })
		if err != nil {
			panic(err)
		}
	}
	return c, nil
}

// exchange is what replaces the update of a batch in the action list of a stage.
func (s *Schedule) exchange(l Copies, stage int) (kinds []Kind) {
	if l.Replica {
		return []Kind{SendGrads, RecvWeights}
	}
	tied := l.Tied && s.Stages > 1
	copies, owner := tied && stage == s.Stages-1, tied && stage == 0 || l.Copied
	for _, k := range []struct {
		kind Kind
		is   bool
	}{{SendGrads, copies}, {RecvGrads, owner}, {GradNorm, s.Delay >= 0}, {Update, true}, {SendWeights, owner}, {RecvWeights, copies}} {
		if k.is {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}

// message identifies an activation or a gradient by the action of the receiver that reads it.
type message struct{ microbatch, batch, chunk int }

// neighbor is the stage and chunk that activations go to (step +1) or come from (−1). It is false beyond the ends of
// the model. With one stage the neighbors of a chunk are on the same stage, which then sends to itself.
func (s *Schedule) neighbor(stage, chunk, step int) (to, toChunk int, is bool) {
	q := s.virtualStage(stage, chunk) + step
	if q < 0 || q >= s.VirtualStages() {
		return 0, 0, false
	}
	return q % s.Stages, q / s.Stages, true
}

// receives is the kind of message that an action of computation needs, and the stage that it comes from.
func (s *Schedule) receives(stage int, a Action) (recv Kind, from int, is bool) {
	switch a.Kind {
	case Forward, Evaluate:
		from, _, is = s.neighbor(stage, a.Chunk, -1)
		return RecvForward, from, is
	case Backward, InputGrad:
		from, _, is = s.neighbor(stage, a.Chunk, +1)
		return RecvBackward, from, is
	}
	return 0, 0, false
}

// sends is the kind of message that an action of computation sends, and the stage and chunk that it goes to.
func (s *Schedule) sends(stage int, a Action) (send Kind, to, chunk int, is bool) {
	switch a.Kind {
	case Forward, Evaluate:
		to, chunk, is = s.neighbor(stage, a.Chunk, +1)
		return SendForward, to, chunk, is
	case Backward, InputGrad:
		to, chunk, is = s.neighbor(stage, a.Chunk, -1)
		return SendBackward, to, chunk, is
	}
	return 0, 0, 0, false
}
