package partition

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Batches is how many batches Problem.Schedule should have: enough for its steady state to show.
const Batches = 4

// slots is how many microbatches each stage has in flight at most: of one chunk, from the forward to the last use of what it
// kept. All chunks of a stage have as many.
func slots(s *schedule.Schedule) []int64 {
	most := make([]int64, s.Stages)
	for i, line := range s.Lines {
		flying := make([]int64, s.Chunks)
		for _, a := range line {
			switch a.Kind {
			case schedule.Forward:
				flying[a.Chunk]++
				most[i] = max(most[i], flying[a.Chunk])
			case schedule.Backward, schedule.WeightGrad:
				flying[a.Chunk]--
			}
		}
	}
	return most
}

// split tells whether the backward runs in two halves, and whether anything comes between the two.
func split(s *schedule.Schedule) (halves, postponed bool) {
	for _, line := range s.Lines {
		for i, a := range line {
			if a.Kind == schedule.WeightGrad {
				first := a
				first.Kind = schedule.InputGrad
				halves, postponed = true, postponed || i == 0 || line[i-1] != first
			}
		}
	}
	return halves, postponed
}

// checkSchedule refuses what is no training schedule with one version of the weights a batch.
func checkSchedule(s *schedule.Schedule) error {
	if s.Delay < 0 || s.Delay > 1 {
		return fmt.Errorf("pipeline.schedule: found %s, whose microbatches do not share weights, expected a schedule with a batch's gradient: gpipe, 1f1b, interleaved, zb-h1 or 2bw", s.Name)
	}
	for i, line := range s.Lines {
		for _, a := range line {
			if a.Kind == schedule.Evaluate {
				return fmt.Errorf("pipeline.schedule: stage %d of %s evaluates, expected a schedule that trains", i, s.Name)
			}
		}
	}
	return nil
}
