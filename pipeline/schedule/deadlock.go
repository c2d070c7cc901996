package schedule

import (
	"fmt"
	"strings"
)

// execute runs a schedule with its communication, each line strictly in order, without time. It is an error when not all come to
// their end. That says it for any timing: lines that wait for messages and for free channels only do the same in every run
// (Kahn, "The semantics of a simple language for parallel programming", 1974).
func (s *Schedule) execute() error {
	e := &execution{Schedule: s, at: make([]int, s.Stages), channels: map[channel][]message{}, done: make([][len(letters)]int, s.Stages)}
	for moved := true; moved; {
		moved = false
		for stage, line := range s.Lines {
			for e.at[stage] < len(line) && e.does(stage, line[e.at[stage]]) == "" {
				e.at[stage]++
				moved = true
			}
		}
	}
	var stuck []string
	for stage, line := range s.Lines {
		if i := e.at[stage]; i < len(line) {
			stuck = append(stuck, fmt.Sprintf("stage %d waits at action %d, %v, for %s", stage, i+1, line[i], e.does(stage, line[i])))
		}
	}
	if len(stuck) > 0 {
		return fmt.Errorf("schedule %s: deadlock: %s", s.Name, strings.Join(stuck, "; "))
	}
	return nil
}

type execution struct {
	*Schedule
	at       []int
	channels map[channel][]message
	done     [][len(letters)]int // of each line, how many batches' actions of the exchange, by kind
}

// toward is where a kind of communication comes from or goes to: the part before (−1) or after (+1).
func (k Kind) toward() int {
	if k == RecvForward || k == SendBackward {
		return -1
	}
	return +1
}

// does does a line's action, or else says what it waits for.
func (e *execution) does(stage int, a Action) (waits string) {
	switch a.Kind {
	case RecvForward, RecvBackward:
		from, _, _ := e.neighbour(stage, a.Chunk, a.Kind.toward())
		c := channel{a.Kind, from, stage}
		queue := e.channels[c]
		switch {
		case len(queue) == 0:
			return fmt.Sprintf("stage %d to send it", from)
		case queue[0] != message{a.Microbatch, a.Batch, a.Chunk}:
			return fmt.Sprintf("it to come: %v from stage %d is first", Action{a.Kind, queue[0].microbatch, queue[0].batch, queue[0].chunk}, from)
		}
		e.channels[c] = append(queue[:0], queue[1:]...)
	case SendForward, SendBackward:
		to, chunk, _ := e.neighbour(stage, a.Chunk, a.Kind.toward())
		c := channel{a.Kind - 1, stage, to} // a receive stands before its send in the list of kinds
		if len(e.channels[c]) >= Capacity {
			return fmt.Sprintf("stage %d to receive what was sent before", to)
		}
		e.channels[c] = append(e.channels[c], message{a.Microbatch, a.Batch, chunk})
	case SendGrads, RecvGrads, Vote, Update, SendWeights, RecvWeights:
		need, of := e.awaits(*e.Links, stage, a.Kind)
		for _, other := range of {
			if e.done[other][need] <= a.Batch {
				return fmt.Sprintf("%v of stage %d", Action{Kind: need, Batch: a.Batch}, other)
			}
		}
		e.done[stage][a.Kind] = a.Batch + 1
	}
	return ""
}
