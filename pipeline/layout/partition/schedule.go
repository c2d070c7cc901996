package partition

import (
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// checkSchedule rejects schedules that do not train, or not with one version of the weights per batch.
func checkSchedule(s *schedule.Schedule) error {
	if s.Delay < 0 || s.Delay > 1 {
		return fielderror.New("schedule", s.Name, "one with a gradient per batch, whose microbatches share weights: %s",
			strings.Join(schedule.TrainableNames(), ", "))
	}
	for i, actions := range s.Actions {
		for _, a := range actions {
			if a.Kind == schedule.Evaluate {
				return fielderror.New("schedule", s.Name, "a schedule that trains: stage %d evaluates", i)
			}
		}
	}
	return nil
}
