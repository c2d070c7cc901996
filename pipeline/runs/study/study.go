package study

import (
	"context"
	"errors"

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

// NewEnded is a run that has ended, for JSON.
func NewEnded(e runs.Ended[Run]) Ended {
	return Ended{e.Run, runs.Number(e.Outcome.ValLoss), e.Outcome.Diverged, e.Outcome.Dir}
}

// runSet is the set of the grid's runs.
func (g *Grid) runSet() runs.Set[Run] {
	return runs.Set[Run]{Noun: noun, Dir: g.Dir, File: g.source.File, Folder: g.Folder, Config: g.Config, Summaries: g.Summaries,
		Needed: func(outcomes map[Run]runs.Outcome) ([]Run, runs.Later) {
			needed, later := g.plan(outcomes)
			return needed, runs.Later{Runs: later, Cost: float64(later)}
		},
		Complete: func(o runs.Outcome) error {
			if o.Diverged == "" && !metrics.Finite(o.ValLoss) {
				return errors.New("the run ended without a validation loss")
			}
			return nil
		}}
}

// Execute trains all runs that have not ended yet, and then writes the report into the grid's folder. A run that
// diverges has an infinite loss. Any other failure stops the study, after the runs in progress have saved. See
// runs.Execute.
func Execute(ctx context.Context, g *Grid, o runs.Options, progress func(runs.Progress[Run])) (*Report, error) {
	release, err := runs.TakeFolder(g.Dir, o.Note)
	if err != nil {
		return nil, err
	}
	defer release()
	g.source.File.Note(noun, g.Dir, o.Note)
	outcomes, err := runs.Execute(ctx, g.runSet(), o, progress)
	if err != nil {
		return nil, err
	}
	rep := newReport(g, outcomes)
	return rep, rep.write(g)
}

// Planned is the remaining work of a study, for JSON.
type Planned struct {
	Ended   []Ended `json:"ended"`
	Waiting []Run   `json:"waiting"`
	Later   int     `json:"later"` // an upper bound of further runs, at learning rates that the waiting runs decide
}

// NewPlanned is the remaining work of a study, for JSON.
func NewPlanned(p runs.Planned[Run]) Planned {
	out := Planned{Waiting: p.Waiting, Later: p.Later}
	for _, e := range p.Ended {
		out.Ended = append(out.Ended, NewEnded(e))
	}
	return out
}

// Plan returns what Execute would do. It trains nothing and writes nothing.
func Plan(g *Grid) (runs.Planned[Run], error) { return runs.Plan(g.runSet()) }
