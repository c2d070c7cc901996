package study

import (
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// cell is an optimizer in a mode at a number of stages. Its learning rate is tuned in the same or another mode.
type cell struct {
	optimizer Optimizer
	mode      Mode
	stages    int
	tuning    string // Synchronous or Each
	tunedIn   string // the mode
}

// tunings are the ways of tuning that the report has.
func (s *Study) tunings() []string {
	if s.Tuning == Both {
		return []string{Synchronous, Each}
	}
	return []string{s.Tuning}
}

// cells are the entries of the study's tables, in their order.
func (s *Study) cells() (cs []cell) {
	for _, tuning := range s.tunings() {
		for _, stages := range s.Stages {
			for _, o := range s.Optimizers {
				for _, m := range s.Modes {
					c := cell{o, m, stages, tuning, SyncMode}
					if tuning == Each {
						c.tunedIn = s.tunedIn(m)
					}
					cs = append(cs, c)
				}
			}
		}
	}
	return cs
}

// tunedIn is the mode from which a mode takes its learning rate, if modes have rates of their own. A mode with wire
// formats takes the rate of the same mode without them, if the grid has that mode.
func (s *Study) tunedIn(m Mode) string {
	if exact := m.exact(); slices.ContainsFunc(s.Modes, func(o Mode) bool { return o.Name == exact }) {
		return exact
	}
	return m.Name
}

// trials are the runs at a learning rate that the choice of a cell's learning rate needs. The number of stages does not
// change what a run computes, wire formats aside, so trials use the grid's first.
func (s *Study) trials(c cell, lr float64) (rs []Run) {
	for _, seed := range s.TuneSeeds {
		rs = append(rs, Run{c.optimizer.Label, c.tunedIn, s.Stages[0], lr, seed})
	}
	return rs
}

// runs are the runs of a cell at a learning rate, by seed.
func (s *Study) runs(c cell, lr float64) (rs []Run) {
	for _, seed := range s.Seeds {
		rs = append(rs, Run{c.optimizer.Label, c.mode.Name, c.stages, lr, seed})
	}
	return rs
}

// rate is the learning rate with the smallest mean loss over the tuning seeds, the smaller of two equal ones. It is NaN
// if all diverge. known is false while a trial is missing.
func (s *Study) rate(c cell, outcomes map[Run]runs.Outcome) (lr float64, known bool) {
	best := math.Inf(1)
	lr = math.NaN()
	for _, candidate := range c.optimizer.LRs {
		var sum float64
		for _, r := range s.trials(c, candidate) {
			o, ok := outcomes[r]
			if !ok {
				return math.NaN(), false
			}
			sum += o.ValLoss
		}
		if sum < best {
			best, lr = sum, candidate
		}
	}
	return lr, true
}

// plan lists the runs that are known to be needed, ended or not, in the order of the grid, trials first. later is an
// upper bound of the runs at learning rates that are not chosen yet.
func (s *Study) plan(outcomes map[Run]runs.Outcome) (needed []Run, later int) {
	seen := map[Run]bool{}
	need := func(rs []Run) {
		for _, r := range rs {
			if !seen[r] {
				seen[r] = true
				needed = append(needed, r)
			}
		}
	}
	open := map[Run]bool{} // without a learning rate yet
	for _, c := range s.cells() {
		for _, lr := range c.optimizer.LRs {
			need(s.trials(c, lr))
		}
	}
	for _, c := range s.cells() {
		lr, known := s.rate(c, outcomes)
		switch {
		case known && !math.IsNaN(lr):
			need(s.runs(c, lr))
		case !known:
			for _, r := range s.unknown(c) {
				open[r] = true
			}
		}
	}
	return needed, len(open)
}

// unknown are the runs of a cell besides trials, before its learning rate is known. Their LR is a placeholder that
// identifies the tuning.
func (s *Study) unknown(c cell) []Run {
	how := 0.0
	if c.tuning == Each && c.tunedIn != SyncMode {
		how = -1
	}
	return slices.DeleteFunc(s.runs(c, how), func(r Run) bool {
		tried := r.Mode == SyncMode || s.Tuning != Synchronous && r.Mode == s.tunedIn(c.mode) // at every rate
		return tried && r.Stages == s.Stages[0] && slices.Contains(s.TuneSeeds, r.Seed)
	})
}
