package partition

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Batches is how many batches Problem.Schedule should have: enough for its steady state to show.
const Batches = 4

// checkSchedule refuses what is no training schedule with one version of the weights a batch.
func checkSchedule(s *schedule.Schedule) error {
	if s.Delay < 0 || s.Delay > 1 {
		return fmt.Errorf("pipeline.schedule: found %s, whose microbatches do not share weights, expected a schedule with one gradient per batch: %s",
			s.Name, strings.Join(schedule.TrainableNames(), ", "))
	}
	for i, line := range s.Actions {
		for _, a := range line {
			if a.Kind == schedule.Evaluate {
				return fmt.Errorf("pipeline.schedule: stage %d of %s evaluates, expected a schedule that trains", i, s.Name)
			}
		}
	}
	return nil
}
