package partition

import (
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Batches is how many batches Problem.Schedule should have: enough for its steady state to show.
const Batches = 4

// checkSchedule refuses what is no training schedule with one version of the weights a batch.
func checkSchedule(s *schedule.Schedule) error {
	if s.Delay < 0 || s.Delay > 1 {
		return fielderror.New("schedule", s.Name, "one with a gradient per batch, whose microbatches share weights: %s",
			strings.Join(schedule.TrainableNames(), ", "))
	}
	for i, line := range s.Actions {
		for _, a := range line {
			if a.Kind == schedule.Evaluate {
				return fielderror.New("schedule", s.Name, "a schedule that trains: stage %d evaluates", i)
			}
		}
	}
	return nil
}
