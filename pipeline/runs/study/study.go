package study

import (
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Ended is a run that has ended.
type Ended struct {
	Run
	ValLoss  *float64 `json:"val_loss"`           // nats per token; nil: the run diverged
	Diverged string   `json:"diverged,omitempty"` // the error of a run that diverged
	Dir      string   `json:"dir"`
}

// newEnded is a run that has ended, for JSON.
func newEnded(e runs.Ended[Run]) Ended {
	return Ended{e.Run, runs.Number(e.Outcome.ValLoss), e.Outcome.Diverged, e.Outcome.Dir}
}

// Event is a run that has ended, for JSON.
func (s *Study) Event(e runs.Ended[Run]) any { return newEnded(e) }

// Ending describes how a run ended.
func (s *Study) Ending(e runs.Ended[Run]) string {
	if e.Outcome.Diverged != "" {
		return "diverged"
	}
	return fmt.Sprintf("validation loss %.4f", e.Outcome.ValLoss)
}

// Best is not shown: a study compares, it does not search.
func (s *Study) Best(map[Run]runs.Outcome) string { return "" }

// Later describes the runs after those that choose learning rates.
func (s *Study) Later() string { return "at the learning rates that these select" }

// Set is the set of the study's runs. A run that diverges has an infinite loss. Any other failure stops the study,
// after the runs in progress have saved.
func (s *Study) Set() (runs.Set[Run], error) {
	return runs.Set[Run]{Noun: s.Noun, Dir: s.Dir, File: s.File, Folder: s.Folder, Config: s.Config, Summaries: s.Summaries,
		Needed: func(outcomes map[Run]runs.Outcome) ([]Run, runs.Later) {
			needed, later := s.plan(outcomes)
			return needed, runs.Later{Runs: later, Cost: float64(later)}
		},
		Complete: func(o runs.Outcome) error {
			if o.Diverged == "" && !metrics.Finite(o.ValLoss) {
				return errors.New("the run ended without a validation loss")
			}
			return nil
		}}, nil
}
