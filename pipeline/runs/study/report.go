package study

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Report is the result of a study, the content of results.json.
type Report struct {
	Seeds     []uint64 `json:"seeds"`
	TuneSeeds []uint64 `json:"tune_seeds"`
	Cells     []Cell   `json:"cells"`
	Findings  []string `json:"findings"` // sentences
	Notes     []string `json:"notes"`    // limits of the findings
	Runs      []Ended  `json:"runs"`
	Files     []string `json:"files"` // written, this one included
}

// Cell is an optimizer in a mode, over all seeds.
type Cell struct {
	Tuning    string         `json:"tuning"` // synchronous: at the learning rate of sync; each: at the mode's own
	Stages    int            `json:"stages"`
	Optimizer string         `json:"optimizer"`
	Mode      string         `json:"mode"`
	LR        *float64       `json:"lr"`     // nil: the optimizer diverged at every one
	Losses    []*float64     `json:"losses"` // validation losses by seed, nats per token; nil: the run diverged
	Diverged  int            `json:"diverged"`
	Loss      runs.Estimate  `json:"loss"`
	Gap       *runs.Estimate `json:"gap,omitempty"` // to sync, seed by seed; nil for sync itself
	// Kept is the share of what sync gains over one replica alone that is left, seed by seed: of replicas that seldom
	// talk, in a grid with the mode alone.
	Kept *runs.Estimate `json:"kept_gain,omitempty"`

	mode   Mode
	losses []float64 // infinite if the run diverged
	gaps   []float64 // to sync, by seed
}

// newReport computes the report of a study. The outcomes must be complete.
func newReport(s *Study, outcomes map[Run]runs.Outcome) *Report {
	rep := &Report{Seeds: s.Seeds, TuneSeeds: s.TuneSeeds, Findings: []string{}, Notes: []string{}, Files: []string{}}
	needed, _ := s.plan(outcomes)
	for _, r := range needed {
		rep.Runs = append(rep.Runs, newEnded(runs.Ended[Run]{Run: r, Outcome: outcomes[r]}))
	}
	for _, c := range s.cells() {
		rep.Cells = append(rep.Cells, newCell(s, c, outcomes))
	}
	for i := range rep.Cells {
		if c := &rep.Cells[i]; c.Mode != SyncMode {
			c.gaps = differences(c.losses, rep.find(c.Tuning, c.Stages, c.Optimizer, SyncMode).losses)
			gap := runs.NewEstimate(c.gaps)
			c.Gap = &gap
		}
	}
	rep.keepShares(s)
	for _, tuning := range s.tunings() {
		for _, stages := range s.Stages {
			rep.Findings = append(rep.Findings, rep.findings(s, tuning, stages)...)
		}
	}
	rep.Notes = append(rep.Notes, notes(s, outcomes)...)
	return rep
}

// newCell collects the losses of a cell.
func newCell(s *Study, c cell, outcomes map[Run]runs.Outcome) Cell {
	out := Cell{Tuning: c.tuning, Stages: c.stages, Optimizer: c.optimizer.Label, Mode: c.mode.Name, mode: c.mode}
	lr, known := s.rate(c, outcomes)
	if !known {
		panic(fmt.Sprintf("study: no learning rate for %s", c.optimizer.Label))
	}
	out.LR = runs.Number(lr)
	for _, r := range s.runs(c, lr) {
		loss := math.Inf(1)
		if out.LR != nil {
			loss = outcomes[r].ValLoss
		}
		if !metrics.Finite(loss) {
			out.Diverged++
		}
		out.losses, out.Losses = append(out.losses, loss), append(out.Losses, runs.Number(loss))
	}
	out.Loss = runs.NewEstimate(out.losses)
	return out
}

func (rep *Report) find(tuning string, stages int, optimizer, mode string) *Cell {
	return &rep.Cells[slices.IndexFunc(rep.Cells, func(c Cell) bool {
		return c.Tuning == tuning && c.Stages == stages && c.Optimizer == optimizer && c.Mode == mode
	})]
}

// notes are about learning rates at an end of their list, and optimizers that always diverge.
func notes(s *Study, outcomes map[Run]runs.Outcome) (out []string) {
	for _, c := range s.cells() {
		lr, _ := s.rate(c, outcomes)
		lrs := c.optimizer.LRs
		var end string
		switch {
		case c.stages != s.Stages[0] || c.tuning != s.tunings()[0] && c.tunedIn == SyncMode:
			continue // the first has the same note
		case c.mode.Name != c.tunedIn || len(lrs) < 2:
			continue
		case math.IsNaN(lr):
			out = append(out, fmt.Sprintf("%s, %s: every learning rate tried diverges.", c.optimizer.Label, c.mode.Title()))
			continue
		case lr == lrs[0]:
			end = "smallest"
		case lr == lrs[len(lrs)-1]:
			end = "largest"
		default:
			continue
		}
		out = append(out, fmt.Sprintf("%s, %s: the best learning rate, %g, is the %s tried; a better one may lie beyond.",
			c.optimizer.Label, c.mode.Title(), lr, end))
	}
	return out
}

// Report compares the losses of the runs.
func (s *Study) Report(outcomes map[Run]runs.Outcome) (runs.Report, error) {
	rep := newReport(s, outcomes)
	page := rep.Markdown(s)
	table, err := rep.csv()
	if err != nil {
		return runs.Report{}, err
	}
	texts := []runs.Text{{Name: "table.csv", Text: table}, {Name: "table.md", Text: []byte(page)}}
	err = runs.WriteReport(s.Dir, texts, func() ([]string, error) { return rep.plot(s) }, rep, &rep.Files)
	return runs.Report{Results: rep, Markdown: page, Files: rep.Files}, err
}
