package schedule

import "iter"

// Slots is how many microbatches a chunk of a line has in flight at most, from its forward to the last use of what that kept, which is B or
// W; at least 1. All chunks of a stage have as many.
func Slots(line iter.Seq[Action]) int {
	flying, most := map[int]int{}, 1
	for a := range line {
		switch a.Kind {
		case Forward:
			flying[a.Chunk]++
			most = max(most, flying[a.Chunk])
		case Backward, WeightGrad:
			flying[a.Chunk]--
		}
	}
	return most
}

// Backwards tells which a line has: whole ones, ones in two halves, and whether anything comes between the two.
func Backwards(line iter.Seq[Action]) (whole, halves, postponed bool) {
	var before Action
	for a := range line {
		switch a.Kind {
		case Backward:
			whole = true
		case WeightGrad:
			first := a
			first.Kind = InputGrad
			halves, postponed = true, postponed || before != first
		}
		before = a
	}
	return whole, halves, postponed
}
