package schedule

// Report is what a schedule asks of its stages.
type Report struct{ Lines []LineReport }

// LineReport is of one stage.
type LineReport struct {
	InFlight     int    `json:"in_flight"`    // the most microbatches (of any chunk) between their forward and the end of their backward
	Versions     int    `json:"versions"`     // the most weights of different batches, at one time
	Accumulators int    `json:"accumulators"` // the most batches' gradients, at one time
	Buffers      int    `json:"buffers"`      // the most of both together; an update makes weights of gradients
	Staleness    [2]int `json:"staleness"`    // least and most updates between the weights of a gradient and the update that it goes into
}

// follower is a line's state while it is followed.
type follower struct {
	*Schedule
	LineReport
	flying   map[Action]int // microbatches between forward and backward, by their F: how many updates made their weights
	left     map[int]int    // batches between first backward and update: gradients to come
	complete int            // batches below have all gradients
	updates  int            // done
}

// follow goes through one line, whose order is right, and notes what it holds.
func (s *Schedule) follow(stage int) (LineReport, error) {
	f := &follower{Schedule: s, flying: map[Action]int{}, left: map[int]int{}}
	f.Staleness = [2]int{max(0, s.Delay), max(0, s.Delay)}
	exchange := s.perBatch(stage)
	f.note()
	for i, a := range s.Lines[stage] {
		switch a.Kind {
		case Forward:
			f.flying[a] = f.updates
		case Backward, WeightGrad:
			if f.backward(a); s.Delay >= 0 && f.Buffers > 2+s.Delay {
				return LineReport{}, s.wrong(stage, i, "is the first gradient of its batch and needs a buffer, but %d versions of the weights and the gradients of %d batches fill all %d: a batch's gradients must be complete before the next one's begin",
					f.versions(), len(f.left)-1, 2+s.Delay)
			}
		case exchange[len(exchange)-1]:
			f.updates++
			delete(f.left, a.Batch)
		}
		f.note()
	}
	return f.LineReport, nil
}

func (f *follower) backward(a Action) {
	if _, begun := f.left[a.Batch]; !begun {
		f.left[a.Batch] = f.Microbatches * f.Chunks
	}
	f.note() // the weights that are read and the gradient are both there
	f.left[a.Batch]--
	a.Kind = Forward
	if f.Delay < 0 {
		age := a.Batch - f.flying[a] // as many updates come before the batch's own
		if a.Batch == 0 {
			f.Staleness = [2]int{age, age}
		}
		f.Staleness = [2]int{min(f.Staleness[0], age), max(f.Staleness[1], age)}
	}
	delete(f.flying, a)
	for n, begun := f.left[f.complete]; begun && n == 0; n, begun = f.left[f.complete] {
		f.complete++
	}
}

func (f *follower) note() {
	v := f.versions()
	f.InFlight, f.Versions, f.Accumulators = max(f.InFlight, len(f.flying)), max(f.Versions, v), max(f.Accumulators, len(f.left))
	f.Buffers = max(f.Buffers, v+len(f.left))
}

// versions is how many weights are held: with a delay of 0 or 1 those of all batches that are not complete, as far as they are
// made, and always the newest; else the newest and those that a microbatch in flight will read again.
func (f *follower) versions() int {
	if f.Delay >= 0 {
		newest := f.updates + f.Delay
		return newest - min(f.complete, newest) + 1
	}
	held := map[int]bool{f.updates: true}
	for _, version := range f.flying {
		held[version] = true
	}
	return len(held)
}
