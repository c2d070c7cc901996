package schedule

// Report is what a schedule demands of its stages.
type Report struct{ Stages []StageReport }

// StageReport is what a schedule demands of one stage.
type StageReport struct {
	// InFlight is the most microbatches (of any chunk) between their forward and the end of their backward.
	InFlight     int `json:"in_flight"`
	Versions     int `json:"versions"`     // the most versions of the weights, at one time
	Accumulators int `json:"accumulators"` // the most batches' gradients, at one time
	Buffers      int `json:"buffers"`      // the most of both together; an update makes weights of gradients
	// Staleness is the least and the most updates between the weights of a microbatch's gradient and the update that it
	// goes into.
	Staleness [2]int `json:"staleness"`
}

// follower is the state of a stage while follow reads its actions.
type follower struct {
	*Schedule
	StageReport
	inFlight map[Action]int // microbatches between forward and backward, by their F: how many updates their weights have
	left     map[int]int    // batches between first backward and update: gradients still to come
	older    map[int]int    // batches from their first backward on: of left, those at the batch's oldest weights
	passed   int            // batches below no longer read their oldest weights
	updates  int            // done
}

// follow reads the actions of one stage, whose order is right, and records the buffers and microbatches that it holds.
func (s *Schedule) follow(stage int) (StageReport, error) {
	f := &follower{Schedule: s, inFlight: map[Action]int{}, left: map[int]int{}, older: map[int]int{}}
	if f.Staleness[1] = max(0, s.Delay); s.Stale == s.Microbatches {
		f.Staleness[0] = f.Staleness[1]
	}
	exchange := s.perBatch(stage)
	f.record()
	for i, a := range s.Actions[stage] {
		switch a.Kind {
		case Forward:
			f.inFlight[a] = f.updates
		case Backward, WeightGrad:
			if f.backward(a); s.Delay >= 0 && f.Buffers > 2+s.Delay {
				return StageReport{}, s.actionError(stage, i,
					"is the first gradient of its batch and needs a buffer, but %d versions of the weights and "+
						"the gradients of %d batches fill all %d: the gradients of a batch must be complete before those of the next begin",
					f.versions(), len(f.left)-1, 2+s.Delay)
			}
		case exchange[len(exchange)-1]:
			f.updates++
			delete(f.left, a.Batch)
		}
		f.record()
	}
	return f.StageReport, nil
}

func (f *follower) backward(a Action) {
	if _, begun := f.left[a.Batch]; !begun {
		f.left[a.Batch], f.older[a.Batch] = f.Microbatches*f.Chunks, f.Microbatches*f.Chunks
		if f.Delay == 1 {
			f.older[a.Batch] = f.Stale * f.Chunks
		}
	}
	f.record() // the weights that are read and the gradient are both there
	f.left[a.Batch]--
	if f.Delay != 1 || f.isStale(a.Microbatch) {
		f.older[a.Batch]--
	}
	a.Kind = Forward
	if f.Delay < 0 {
		age := a.Batch - f.inFlight[a] // the updates before the batch's own that its weights lack
		if a.Batch == 0 {
			f.Staleness = [2]int{age, age}
		}
		f.Staleness = [2]int{min(f.Staleness[0], age), max(f.Staleness[1], age)}
	}
	delete(f.inFlight, a)
	for n, begun := f.older[f.passed]; begun && n == 0; n, begun = f.older[f.passed] {
		delete(f.older, f.passed)
		f.passed++
	}
}

func (f *follower) record() {
	v := f.versions()
	f.InFlight, f.Versions, f.Accumulators = max(f.InFlight, len(f.inFlight)), max(f.Versions, v), max(f.Accumulators, len(f.left))
	f.Buffers = max(f.Buffers, v+len(f.left))
}

// versions is the number of versions of the weights that are held. With a delay of 0 or 1 these are all from the oldest
// that a batch still reads to the newest; otherwise the newest and the versions that a microbatch in flight will read
// again.
func (f *follower) versions() int {
	if f.Delay >= 0 {
		newest := f.updates + f.Delay
		return newest - min(f.passed, newest) + 1
	}
	held := map[int]bool{f.updates: true}
	for _, version := range f.inFlight {
		held[version] = true
	}
	return len(held)
}
