package schedule

import (
	"fmt"
	"strings"
)

// execute runs a schedule with communication, each stage strictly in order, without time. It returns an error unless
// all stages reach their end. The result holds for any timing: processes that wait only for messages and for free
// channels behave the same in every run (Kahn, "The semantics of a simple language for parallel programming", 1974).
func (s *Schedule) execute() error {
	e := &execution{Schedule: s, next: make([]int, s.Stages), channels: map[channel][]message{}, done: make([][len(letters)]int, s.Stages)}
	for moved := true; moved; {
		moved = false
		for stage, actions := range s.Actions {
			for e.next[stage] < len(actions) && e.step(stage, actions[e.next[stage]]) == "" {
				e.next[stage]++
				moved = true
			}
		}
	}
	var stuck []string
	for stage, actions := range s.Actions {
		if i := e.next[stage]; i < len(actions) {
			stuck = append(stuck, fmt.Sprintf("stage %d waits at action %d, %v, for %s", stage, i+1, actions[i], e.step(stage, actions[i])))
		}
	}
	if len(stuck) > 0 {
		return fmt.Errorf("schedule %s: deadlock: %s", s.Name, strings.Join(stuck, "; "))
	}
	return nil
}

type execution struct {
	*Schedule
	next     []int
	channels map[channel][]message
	done     [][len(letters)]int // by stage and kind: of how many batches the exchange is done
}

// direction says which virtual stage a kind of communication connects to: the one before (−1) or after (+1).
func (k Kind) direction() int {
	if k == RecvForward || k == SendBackward {
		return -1
	}
	return +1
}

// step executes an action of a stage. If the action must wait, step does nothing and returns what it waits for.
func (e *execution) step(stage int, a Action) (waits string) {
	switch a.Kind {
	case RecvForward, RecvBackward:
		from, _, _ := e.neighbor(stage, a.Chunk, a.Kind.direction())
		c := channel{a.Kind, from, stage}
		queue := e.channels[c]
		switch {
		case len(queue) == 0:
			return fmt.Sprintf("stage %d to send it", from)
		case queue[0] != message{a.Microbatch, a.Batch, a.Chunk}:
			return fmt.Sprintf("it to come: %v from stage %d is first", Action{a.Kind, queue[0].microbatch, queue[0].batch,
				queue[0].chunk}, from)
		}
		e.channels[c] = append(queue[:0], queue[1:]...)
	case SendForward, SendBackward:
		to, chunk, _ := e.neighbor(stage, a.Chunk, a.Kind.direction())
		c := channel{a.Kind - 1, stage, to} // a receive stands before its send in the list of kinds
		if len(e.channels[c]) >= Capacity {
			return fmt.Sprintf("stage %d to receive what was sent before", to)
		}
		e.channels[c] = append(e.channels[c], message{a.Microbatch, a.Batch, chunk})
	case SendGrads, RecvGrads, GradNorm, Update, SendWeights, RecvWeights:
		need, of := e.exchangeNeeds(*e.Copies, stage, a.Kind)
		for _, other := range of {
			if e.done[other][need] <= a.Batch {
				return fmt.Sprintf("%v of stage %d", Action{Kind: need, Batch: a.Batch}, other)
			}
		}
		e.done[stage][a.Kind] = a.Batch + 1
	}
	return ""
}
