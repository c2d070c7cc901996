package schedule

import (
	"fmt"
	"slices"
	"strings"
)

// The depth k is the number of microbatches in flight on the first stage beyond one per stage. Depth 0 keeps p stages
// busy if messages take no time. Over a slow link a microbatch is also in flight while a message carries it, so that p
// microbatches no longer keep all stages busy: see Closed. Depth changes neither the weights that a microbatch reads
// nor the order of sums, so it does not change the result.

// extra is how many of the k microbatches a stage has in flight: its share of k·(p−1−s)/(p−1), rounded to the nearest,
// half down. Every link then has nearly the same number of microbatches, and no link limits the others more than it
// must. Rounding down would give all of a small depth to the first link.
func (o Options) extra(stage int) int {
	links := o.Stages - 1
	if links == 0 {
		return 0
	}
	return (2*o.Depth*(links-stage) + links - 1) / (2 * links)
}

// warmup is the number of forwards before the first pair of a forward and a backward of 1f1b and 2bw.
func (o Options) warmup(stage int) int { return o.Stages - 1 - stage + o.extra(stage) }

// PatternBatches is a number of batches that shows the steady state of a schedule without links. The planner simulates
// and plans memory for that many, so a schedule file has no more.
const PatternBatches = 4

// SteadyBatches is a number of batches after which Result.Steady is exact over links. A pipeline that waits for
// messages repeats itself after as many microbatches as are in flight, so Steady has to cover a multiple of these,
// after a few batches in which the pipeline settles.
func (o Options) SteadyBatches() int {
	const settling = 6
	n, inFlight := o.Microbatches, o.Stages+o.Depth
	cycle := 1 // in batches
	for cycle*n%inFlight != 0 {
		cycle++
	}
	return 2*((settling+cycle-1)/cycle*cycle) + 1 // Steady covers the second half
}

// checkDepth refuses a depth that a schedule cannot have, and one with too few microbatches.
func (f Family) checkDepth(o Options) error {
	if o.Depth == 0 {
		return nil
	}
	if most := maxNumber - maxStages; o.Depth < 0 || o.Depth > most {
		return fmt.Errorf("depth: found %d, expected 0 to %d", o.Depth, most)
	}
	if !f.Deep {
		deep := slices.DeleteFunc(Families(), func(f Family) bool { return !f.Deep })
		return fmt.Errorf("depth: found %d, expected 0: only %s can have more microbatches in flight", o.Depth,
			strings.Join(names(deep), " and "))
	}
	if o.Stages == 1 {
		return fmt.Errorf("depth: found %d on one stage, expected 0: there is no link to wait for", o.Depth)
	}
	if need := o.Stages + o.Depth; o.Microbatches < need {
		return &MicrobatchesError{Found: o.Microbatches, Stages: o.Stages, Next: need,
			Expected: fmt.Sprintf("at least %d: one per stage and %d more in flight", need, o.Depth)}
	}
	return nil
}

// atDepth names a depth in an error; it is empty for 0.
func atDepth(depth int) string {
	if depth == 0 {
		return ""
	}
	return fmt.Sprintf(" and depth %d", depth)
}

// checkDepth compares the depth with the microbatches that the first stage has in flight.
func (s *Schedule) checkDepth(first StageReport) error {
	if s.Depth > 0 && first.InFlight != s.Stages+s.Depth {
		return fmt.Errorf("schedule %s: depth: found %d, but stage 0 of %d has %d microbatches in flight, expected %d", s.Name, s.Depth,
			s.Stages, first.InFlight, s.Stages+s.Depth)
	}
	return nil
}
