package schedule

import "iter"

// Slots is the most microbatches that any chunk of a stage has in flight, and at least 1. A microbatch is in flight
// from its forward to the last use of the activations that it keeps, its B or W.
func Slots(actions iter.Seq[Action]) int {
	inFlight, most := map[int]int{}, 1
	for a := range actions {
		switch a.Kind {
		case Forward:
			inFlight[a.Chunk]++
			most = max(most, inFlight[a.Chunk])
		case Backward, WeightGrad:
			inFlight[a.Chunk]--
		}
	}
	return most
}

// Backwards reports whether an action list has whole backwards (B), whether it has split ones (I and W), and whether
// anything stands between an I and its W.
func Backwards(actions iter.Seq[Action]) (whole, split, postponed bool) {
	var before Action
	for a := range actions {
		switch a.Kind {
		case Backward:
			whole = true
		case WeightGrad:
			first := a
			first.Kind = InputGrad
			split, postponed = true, postponed || before != first
		}
		before = a
	}
	return whole, split, postponed
}
