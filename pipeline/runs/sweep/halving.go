package sweep

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// halving are the settings of successive halving.
type halving struct {
	Factor   int `yaml:"factor"`    // a rung keeps the best 1/Factor of its trials, and trains them Factor times as long
	MinSteps int `yaml:"min_steps"` // the first rung has at least as many steps; 0: there are three rungs
}

// rungs are the steps after which trials are compared: train.steps, and train.steps divided by powers of the factor as
// long as the quotient is at least min_steps.
func (s *Sweep) rungs(h halving) ([]int, error) {
	for _, k := range s.Keys {
		if k.sets("train.steps") {
			return nil, s.Errorf("keys."+k.Name, "found values of train.steps, expected none with search: halving: it is the length of the last rung")
		}
	}
	c, err := s.compose(s.run(0, s.Seeds[0], 0)).Config()
	if err != nil {
		return nil, err
	}
	steps := c.Train.Steps
	least := h.MinSteps
	if least == 0 {
		least = steps / (h.Factor * h.Factor)
	}
	var out []int
	for n := steps; n >= max(1, least); n /= h.Factor {
		out = slices.Insert(out, 0, n)
	}
	if len(out) < 2 || h.MinSteps < 0 {
		return nil, s.Errorf("halving.min_steps", "found %d, expected 1 to %d: train.steps (%d) divided by halving.factor (%d)",
			h.MinSteps, steps/h.Factor, steps, h.Factor)
	}
	return out, nil
}

// span returns the steps of a run: those after the rung before, up to its rung.
func (s *Sweep) span(r Run) (from, to int) {
	if r.Rung > 0 {
		from = s.Rungs[r.Rung-1]
	}
	return from, s.Rungs[r.Rung]
}

// levels is the number of rungs; a search without them has one.
func (s *Sweep) levels() int { return max(1, len(s.Rungs)) }

// needed lists the runs of all rungs whose trials are known.
func (s *Sweep) needed(outcomes map[Run]runs.Outcome) (rs []Run, later runs.Later) {
	entrants := make([]int, len(s.Trials))
	for i := range entrants {
		entrants[i] = i
	}
	for rung := range s.levels() {
		complete := true
		for _, t := range entrants {
			for _, seed := range s.Seeds {
				r := s.run(t, seed, rung)
				rs = append(rs, r)
				if _, ok := outcomes[r]; !ok {
					complete = false
				}
			}
		}
		if !complete {
			return rs, s.later(rung+1, len(entrants))
		}
		entrants = s.promoted(entrants, rung, outcomes)
	}
	return rs, later
}

// later bounds the runs of the rungs from one on, if the rung before has n trials.
func (s *Sweep) later(rung, n int) (later runs.Later) {
	for ; rung < s.levels(); rung++ {
		n = s.kept(n)
		later.Runs += n * len(s.Seeds)
		later.Cost += float64(n * len(s.Seeds) * (s.Rungs[rung] - s.Rungs[rung-1]))
	}
	return later
}

// kept is how many of n trials of a rung are promoted.
func (s *Sweep) kept(n int) int { return max(1, n/s.factor) }

// promoted returns the best trials of a rung that is complete, best first. It omits those without a score.
func (s *Sweep) promoted(entrants []int, rung int, outcomes map[Run]runs.Outcome) []int {
	ranked := slices.Clone(entrants)
	cost := func(t int) float64 { return s.Metric.cost(s.scored(t, rung, outcomes).Mean) }
	slices.SortStableFunc(ranked, func(a, b int) int { return cmp.Compare(cost(a), cost(b)) })
	ranked = ranked[:min(len(ranked), s.kept(len(entrants)))]
	return slices.DeleteFunc(ranked, func(t int) bool { return math.IsInf(cost(t), 1) })
}

// scored is the score of a trial at a rung, the mean over the seeds. It is NaN if a run has none.
func (s *Sweep) scored(trial, rung int, outcomes map[Run]runs.Outcome) runs.Estimate {
	return runs.NewEstimate(s.scores(trial, rung, outcomes))
}

// scores are the scores of a trial's runs at a rung, by seed. A score is NaN if the run has none.
func (s *Sweep) scores(trial, rung int, outcomes map[Run]runs.Outcome) (xs []float64) {
	for _, seed := range s.Seeds {
		x, ok := s.Metric.score(outcomes[s.run(trial, seed, rung)])
		if !ok {
			x = math.NaN()
		}
		xs = append(xs, x)
	}
	return xs
}
