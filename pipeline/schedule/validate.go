package schedule

import (
	"fmt"
	"iter"
	"slices"
)

// Validate checks that a schedule can run and computes what training means, before or after Communicate:
//   - each stage has every action of its chunks exactly once, and no other;
//   - an action stands after all that it needs: a backward after its forward, a weight gradient after its input
//     gradient, the update of a batch after all of its backwards, and a forward after the update that makes the
//     weights that it reads;
//   - gradients are summed in the order of microbatches, and 2 + Delay buffers of a stage's parameters are
//     enough;
//   - with a depth, the first stage has that many microbatches more in flight than there are stages;
//   - all stages reach their end with channels of Capacity messages.
//
// The error names the first violation: the stage, the action and the missing condition.
func Validate(s *Schedule) (*Report, error) {
	if err := s.checkActions(); err != nil {
		return nil, err
	}
	r := new(Report)
	for stage := range s.Actions {
		report, err := s.follow(stage)
		if err != nil {
			return nil, err
		}
		r.Stages = append(r.Stages, report)
	}
	if err := s.checkDepth(r.Stages[0]); err != nil {
		return nil, err
	}
	if s.Copies == nil {
		return r, s.generator().insertCommunication(Copies{}, func(int, Action) bool { return true })
	}
	return r, s.execute()
}

// checkActions checks each stage by itself.
func (s *Schedule) checkActions() error {
	if err := s.checkHead(); err != nil {
		return err
	}
	for stage := range s.Actions {
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
		{"batches", s.Batches, 1, maxNumber + 1}, {"delay", s.Delay, -1, 1}, {"stale", s.Stale, max(0, s.Delay),
			max(0, s.Delay) * s.Microbatches}, {"depth", s.Depth, 0, maxNumber + 1}} {
		if n.found < n.low || n.found > n.high {
			return fmt.Errorf("schedule %s: %s: found %d, expected %d to %d", s.Name, n.name, n.found, n.low, n.high)
		}
	}
	if len(s.Actions) != s.Stages {
		return fmt.Errorf("schedule %s: found action lists of %d stages, expected %d", s.Name, len(s.Actions), s.Stages)
	}
	if s.Copies == nil {
		return nil
	}
	return s.checkCopies(*s.Copies)
}

func (s *Schedule) checkCopies(l Copies) error {
	switch {
	case l.Replica && l.Copied:
		return fmt.Errorf("schedule %s: links: found replica and copied, expected one of them: a pipeline holds only copies or owns its parameters", s.Name)
	case s.Delay < 0 && l != Copies{}:
		return fmt.Errorf("schedule %s: found copies of parameters, expected no tied embeddings and no replicas: "+
			"its stages update at different times, which would make copies differ", s.Name)
	}
	return nil
}

// evaluates reports whether the schedule consists of forwards only.
func (s *Schedule) evaluates() bool {
	for _, actions := range s.Actions {
		for _, a := range actions {
			if a.Kind.Computes() {
				return a.Kind == Evaluate
			}
		}
	}
	return false
}

// positions is the position of each action of a stage. It returns an error unless the stage has exactly the expected
// actions.
func (s *Schedule) positions(stage int) (map[Action]int, error) {
	at := make(map[Action]int, len(s.Actions[stage]))
	for i, a := range s.Actions[stage] {
		if first, twice := at[a]; twice {
			return nil, s.actionError(stage, i, "is listed twice, first as action %d", first+1)
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
	for i, a := range s.Actions[stage] {
		if foreign[a] {
			return nil, s.actionError(stage, i, "is not expected: %s", s.explain(stage, a, at))
		}
	}
	panic("schedule: as many actions as expected, and others")
}

// explain is the reason why an action is not expected.
func (s *Schedule) explain(stage int, a Action, at map[Action]int) string {
	split := a
	split.Kind = InputGrad
	_, isSplit := at[split]
	switch {
	case a.Microbatch >= s.Microbatches || a.Batch >= s.Batches || a.Chunk >= s.Chunks:
		return fmt.Sprintf("the schedule has %d microbatches per batch, %d batches and %d chunks per stage", s.Microbatches, s.Batches,
			s.Chunks)
	case a.Kind == Backward && isSplit:
		return fmt.Sprintf("the backward is split, with %v", split)
	case !a.Kind.Computes() && s.Copies == nil:
		return "the schedule contains computation only; communication needs links in the header"
	case a.Kind.PerBatch():
		return fmt.Sprintf("the header has links %v, with which a batch has %v", s.Copies, s.exchange(*s.Copies, stage))
	case !a.Kind.Computes():
		return fmt.Sprintf("virtual stage %d of %d has no such neighbor", s.virtualStage(stage, a.Chunk), s.VirtualStages())
	}
	return "a schedule either evaluates or trains"
}

// actionError is an error about an action at its position.
func (s *Schedule) actionError(stage, i int, format string, args ...any) error {
	return fmt.Errorf("schedule %s: stage %d: action %d, %v, %s", s.Name, stage, i+1, s.Actions[stage][i], fmt.Sprintf(format, args...))
}

// expected yields the actions that a stage must have. Backwards are whole or split as they are in the action list.
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
						if s.Copies == nil {
							continue
						}
						if recv, _, is := s.receives(stage, a); is && !yield(Action{recv, i, t, c}) {
							return
						}
						if send, _, _, is := s.sends(stage, a); is && !yield(Action{send, i, t, c}) {
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

// kinds are the computations of a microbatch on a chunk.
func (s *Schedule) kinds(evaluates bool, a Action, at map[Action]int) []Kind {
	if evaluates {
		return []Kind{Evaluate}
	}
	for _, kind := range []Kind{InputGrad, WeightGrad} {
		a.Kind = kind
		if _, has := at[a]; has {
			return []Kind{Forward, InputGrad, WeightGrad}
		}
	}
	return []Kind{Forward, Backward}
}

// perBatch are the actions that end a batch.
func (s *Schedule) perBatch(stage int) []Kind {
	if s.Copies == nil {
		return []Kind{Update}
	}
	return s.exchange(*s.Copies, stage)
}

// checkOrder checks that each action stands after all that it needs.
func (s *Schedule) checkOrder(stage int, at map[Action]int) error {
	for i, a := range s.Actions[stage] {
		for _, b := range s.before(stage, a) {
			if j, has := at[b]; has && j > i {
				return s.actionError(stage, i, "stands before %v, which it needs", b)
			}
		}
	}
	return nil
}

// before are the actions of the stage that must stand before another. Not all of them need exist.
func (s *Schedule) before(stage int, a Action) []Action {
	of := func(kind Kind) Action { return Action{kind, a.Microbatch, a.Batch, a.Chunk} }
	switch a.Kind {
	case Forward:
		if s.Delay < 0 {
			return []Action{of(RecvForward)}
		}
		exchange := s.perBatch(stage) // its last action leaves new weights
		return []Action{of(RecvForward), {Kind: exchange[len(exchange)-1], Batch: s.reads(a)}}
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

// sums are the actions that leave the gradients to which a microbatch adds its own: the backwards of the microbatch
// before.
func sums(a Action) []Action {
	return []Action{{Backward, a.Microbatch - 1, a.Batch, a.Chunk}, {WeightGrad, a.Microbatch - 1, a.Batch, a.Chunk}}
}

// beforeExchange is the order within the exchange; its first action stands after the last backwards and the exchange
// before.
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
