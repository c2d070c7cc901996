package schedule

import (
	"fmt"
	"iter"
	"slices"
)

// Validate says whether a schedule can be run and computes what training means, before or after Communicate:
//   - each line has every action of its parts exactly once, and no other;
//   - what an action needs comes before it: forward before backward, the backward's input half before its weight half, all backwards
//     of a batch before its update, and the update that made a batch's weights before the batch's first forward;
//   - gradients are summed in the order of microbatches, and 2 + Delay buffers of a line's parameters are enough;
//   - all lines come to their end, with channels of Capacity messages.
//
// The error names the first thing found wrong: stage, action, what is missing.
func Validate(s *Schedule) (*Report, error) {
	if err := s.checkLines(); err != nil {
		return nil, err
	}
	r := new(Report)
	for stage := range s.Lines {
		line, err := s.follow(stage)
		if err != nil {
			return nil, err
		}
		r.Lines = append(r.Lines, line)
	}
	if s.Links == nil {
		return r, s.generator().weave(Links{}, func(int, Action) bool { return true })
	}
	return r, s.execute()
}

// checkLines looks at each line alone.
func (s *Schedule) checkLines() error {
	if err := s.checkHead(); err != nil {
		return err
	}
	for stage := range s.Lines {
		at, err := s.positions(stage)
		if err != nil {
			return err
		}
		if err := s.checkOrder(stage, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *Schedule) checkHead() error {
	for _, n := range []struct {
		name             string
		found, low, high int
	}{{"stages", s.Stages, 1, maxStages}, {"chunks", s.Chunks, 1, maxChunks}, {"microbatches", s.Microbatches, 1, maxNumber + 1},
		{"batches", s.Batches, 1, maxNumber + 1}, {"delay", s.Delay, -1, 1}} {
		if n.found < n.low || n.found > n.high {
			return fmt.Errorf("schedule %s: %s: found %d, expected %d to %d", s.Name, n.name, n.found, n.low, n.high)
		}
	}
	if len(s.Lines) != s.Stages {
		return fmt.Errorf("schedule %s: found %d lines, expected one for each of %d stages", s.Name, len(s.Lines), s.Stages)
	}
	if s.Links == nil {
		return nil
	}
	return s.checkLinks(*s.Links)
}

func (s *Schedule) checkLinks(l Links) error {
	switch {
	case l.Replica && l.Copied:
		return fmt.Errorf("schedule %s: a pipeline holds copies only or owns its parameters, not both", s.Name)
	case s.Delay < 0 && l != Links{}:
		return fmt.Errorf("schedule %s: its stages update at different times, so that copies of parameters cannot be kept equal: expected no tied embeddings and no replicas", s.Name)
	}
	return nil
}

// evaluates tells schedules of forwards only.
func (s *Schedule) evaluates() bool {
	for _, line := range s.Lines {
		for _, a := range line {
			if a.Kind.Computes() {
				return a.Kind == Evaluate
			}
		}
	}
	return false
}

// positions finds where in its line each action is. It is an error when the line has not exactly the actions that it should.
func (s *Schedule) positions(stage int) (map[Action]int, error) {
	at := make(map[Action]int, len(s.Lines[stage]))
	for i, a := range s.Lines[stage] {
		if first, twice := at[a]; twice {
			return nil, s.wrong(stage, i, "stands there a second time, the first was action %d", first+1)
		}
		at[a] = i
	}
	known := 0
	for a := range s.expected(stage, at) {
		if _, has := at[a]; !has {
			return nil, fmt.Errorf("schedule %s: stage %d: %v is missing", s.Name, stage, a)
		}
		known++
	}
	if known == len(at) {
		return at, nil
	}
	foreign := make(map[Action]bool, len(at))
	for a := range at {
		foreign[a] = true
	}
	for a := range s.expected(stage, at) {
		delete(foreign, a)
	}
	for i, a := range s.Lines[stage] {
		if foreign[a] {
			return nil, s.wrong(stage, i, "has no place here: %s", s.why(stage, a, at))
		}
	}
	panic("schedule: as many actions as expected, and others")
}

// why explains what is wrong with an action that a line should not have.
func (s *Schedule) why(stage int, a Action, at map[Action]int) string {
	split := a
	split.Kind = InputGrad
	_, halves := at[split]
	switch {
	case a.Microbatch >= s.Microbatches || a.Batch >= s.Batches || a.Chunk >= s.Chunks:
		return fmt.Sprintf("the schedule is of %d microbatches a batch, %d batches, %d chunks a stage", s.Microbatches, s.Batches, s.Chunks)
	case a.Kind == Backward && halves:
		return fmt.Sprintf("beside its half %v", split)
	case !a.Kind.Computes() && s.Links == nil:
		return "the schedule is of computation only, or its links are not said"
	case a.Kind.PerBatch():
		return fmt.Sprintf("the schedule's links are %v, which ask for %v", s.Links, s.exchange(*s.Links, stage))
	case !a.Kind.Computes():
		return fmt.Sprintf("part %d of %d has no such neighbour", s.part(stage, a.Chunk), s.Parts())
	}
	return "a schedule evaluates or trains, not both"
}

// wrong is an error about an action in its place.
func (s *Schedule) wrong(stage, i int, format string, args ...any) error {
	return fmt.Errorf("schedule %s: stage %d: action %d, %v, %s", s.Name, stage, i+1, s.Lines[stage][i], fmt.Sprintf(format, args...))
}

// expected are the actions that a line should have. Whether a backward is whole or in halves is as the line has it.
func (s *Schedule) expected(stage int, at map[Action]int) iter.Seq[Action] {
	evaluates := s.evaluates()
	return func(yield func(Action) bool) {
		for t := range s.Batches {
			for c := range s.Chunks {
				for i := range s.Microbatches {
					for _, kind := range s.kinds(evaluates, Action{Microbatch: i, Batch: t, Chunk: c}, at) {
						a := Action{kind, i, t, c}
						if !yield(a) {
							return
						}
						if s.Links == nil {
							continue
						}
						if recv, _, is := s.needs(stage, a); is && !yield(Action{recv, i, t, c}) {
							return
						}
						if send, _, _, is := s.gives(stage, a); is && !yield(Action{send, i, t, c}) {
							return
						}
					}
				}
			}
			if evaluates {
				continue
			}
			for _, kind := range s.perBatch(stage) {
				if !yield(Action{Kind: kind, Batch: t}) {
					return
				}
			}
		}
	}
}

// kinds are what is computed for a microbatch on a chunk.
func (s *Schedule) kinds(evaluates bool, a Action, at map[Action]int) []Kind {
	if evaluates {
		return []Kind{Evaluate}
	}
	for _, half := range []Kind{InputGrad, WeightGrad} {
		a.Kind = half
		if _, has := at[a]; has {
			return []Kind{Forward, InputGrad, WeightGrad}
		}
	}
	return []Kind{Forward, Backward}
}

// perBatch are the actions of a batch's exchange.
func (s *Schedule) perBatch(stage int) []Kind {
	if s.Links == nil {
		return []Kind{Update}
	}
	return s.exchange(*s.Links, stage)
}

// checkOrder compares each action's place with that of all which must come before it.
func (s *Schedule) checkOrder(stage int, at map[Action]int) error {
	for i, a := range s.Lines[stage] {
		for _, b := range s.before(stage, a) {
			if j, has := at[b]; has && j > i {
				return s.wrong(stage, i, "comes before %v, which it needs", b)
			}
		}
	}
	return nil
}

// before are the actions of the same line after which another comes. Not all of them need exist.
func (s *Schedule) before(stage int, a Action) []Action {
	of := func(kind Kind) Action { return Action{kind, a.Microbatch, a.Batch, a.Chunk} }
	switch a.Kind {
	case Forward:
		if s.Delay < 0 {
			return []Action{of(RecvForward)}
		}
		exchange := s.perBatch(stage) // whose end leaves the weights that the batch reads
		return []Action{of(RecvForward), {Kind: exchange[len(exchange)-1], Batch: a.Batch - 1 - s.Delay}}
	case Evaluate:
		return []Action{of(RecvForward)}
	case Backward:
		return append(sums(a), of(Forward), of(RecvBackward))
	case InputGrad:
		return []Action{of(Forward), of(RecvBackward)}
	case WeightGrad:
		return append(sums(a), of(InputGrad))
	case SendForward:
		return []Action{of(Forward), of(Evaluate)}
	case SendBackward:
		return []Action{of(Backward), of(InputGrad)}
	case RecvForward, RecvBackward:
		return nil
	}
	return s.beforeExchange(stage, a)
}

// sums are the gradients to which those of a microbatch are added: of the one before, on the same chunk.
func sums(a Action) []Action {
	return []Action{{Backward, a.Microbatch - 1, a.Batch, a.Chunk}, {WeightGrad, a.Microbatch - 1, a.Batch, a.Chunk}}
}

// beforeExchange is the exchange's own order, and at its beginning the last backwards and the exchange before.
func (s *Schedule) beforeExchange(stage int, a Action) []Action {
	kinds := s.perBatch(stage)
	if i := slices.Index(kinds, a.Kind); i > 0 {
		return []Action{{Kind: kinds[i-1], Batch: a.Batch}}
	}
	before := []Action{{Kind: kinds[len(kinds)-1], Batch: a.Batch - 1}}
	for c := range s.Chunks { // microbatches are in order, so the last stands for all
		before = append(before, sums(Action{Microbatch: s.Microbatches, Batch: a.Batch, Chunk: c})...)
	}
	return before
}
