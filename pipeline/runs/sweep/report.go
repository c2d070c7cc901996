package sweep

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Report is the result of a sweep, the content of results.json.
type Report struct {
	Search string        `json:"search"`
	Metric string        `json:"metric"`
	Goal   string        `json:"goal"`
	Seeds  []uint64      `json:"seeds"`
	Rungs  []int         `json:"rungs,omitempty"` // steps after which trials were compared
	Best   *TrialReport  `json:"best"`            // nil: no trial has a score
	Trials []TrialReport `json:"trials"`          // trials of later rungs first, then by score
	Notes  []string      `json:"notes"`           // limits of the result
	Files  []string      `json:"files"`           // written, this one included
}

// TrialReport is a trial with its score at the last rung that it reached.
type TrialReport struct {
	Trial  int            `json:"trial"` // from 1, in the order of the search
	Values map[string]any `json:"values"`
	Steps  int            `json:"steps"`  // that the score is after
	Scores []*float64     `json:"scores"` // by seed; nil: the run has none
	Score  runs.Estimate  `json:"score"`
	Status string         `json:"status"`           // Done, Stopped, Diverged or Failed
	Reason string         `json:"reason,omitempty"` // the error of a run that diverged or failed, or the hook that ended one
	Dirs   []string       `json:"dirs"`             // of the runs, by seed

	values []value
	rung   int
}

// Values of TrialReport.Status.
const (
	Done     = "done"
	Stopped  = "stopped" // by halving at a rung, or by a hook
	Diverged = "diverged"
	Failed   = "failed"
)

// report computes the report of a sweep. The outcomes must be complete.
func (s *Sweep) report(outcomes map[Run]runs.Outcome) *Report {
	rep := &Report{Search: s.Search, Metric: s.Metric.Name, Goal: s.Metric.Goal, Seeds: s.Seeds, Rungs: s.Rungs, Notes: []string{},
		Files: []string{}}
	for t := range s.Trials {
		rep.Trials = append(rep.Trials, s.trialReport(t, outcomes))
	}
	slices.SortStableFunc(rep.Trials, func(a, b TrialReport) int {
		return cmp.Or(cmp.Compare(b.rung, a.rung), cmp.Compare(s.Metric.cost(a.Score.Mean), s.Metric.cost(b.Score.Mean)))
	})
	if i := slices.IndexFunc(rep.Trials, func(t TrialReport) bool { return metrics.Finite(t.Score.Mean) }); i >= 0 {
		best := rep.Trials[i]
		rep.Best = &best
		rep.Notes = append(rep.Notes, s.edges(best)...)
	}
	for _, status := range []string{Diverged, Failed} {
		if n := rep.count(status); n > 0 {
			rep.Notes = append(rep.Notes, fmt.Sprintf("%d of %d trials %s.", n, len(rep.Trials), status))
		}
	}
	return rep
}

// count is the number of trials of a status.
func (rep *Report) count(status string) (n int) {
	for _, t := range rep.Trials {
		if t.Status == status {
			n++
		}
	}
	return n
}

func (s *Sweep) trialReport(trial int, outcomes map[Run]runs.Outcome) TrialReport {
	t := TrialReport{Trial: trial + 1, Values: s.valuesOf(trial), Status: Done, values: s.Trials[trial].values}
	for t.rung+1 < s.levels() {
		if _, ok := outcomes[s.run(trial, s.Seeds[0], t.rung+1)]; !ok {
			t.Status = Stopped
			break
		}
		t.rung++
	}
	for _, x := range s.scores(trial, t.rung, outcomes) {
		t.Scores = append(t.Scores, runs.Number(x))
	}
	t.Score = s.scored(trial, t.rung, outcomes)
	for _, seed := range s.Seeds {
		r := s.run(trial, seed, t.rung)
		o := outcomes[r]
		t.Dirs = append(t.Dirs, s.Folder(r))
		t.Steps = max(t.Steps, o.Step)
		switch {
		case o.Failed != "":
			t.Status, t.Reason = Failed, o.Failed
		case o.Diverged != "" && t.Status != Failed:
			t.Status, t.Reason = Diverged, o.Diverged
		case o.Stopped != "" && t.Reason == "":
			t.Status, t.Reason = Stopped, "by "+o.Stopped
		}
	}
	return t
}

// edges notes which numbers of the best trial are at an end of what was searched.
func (s *Sweep) edges(best TrialReport) (notes []string) {
	for i, k := range s.Keys {
		if end := k.end(best.values[i].number); end != "" {
			notes = append(notes, fmt.Sprintf("the best %s, %s, is %s; a better one may lie beyond.", k.Name, best.values[i].text, end))
		}
	}
	return notes
}

// Report compares the scores of the trials. It is an error if there is none.
func (s *Sweep) Report(outcomes map[Run]runs.Outcome) (runs.Report, error) {
	rep := s.report(outcomes)
	out := runs.Report{Results: rep, Markdown: rep.Markdown(s)}
	table, err := rep.csv(s)
	if err != nil {
		return out, err
	}
	texts := []runs.Text{{Name: "table.md", Text: []byte(out.Markdown)}, {Name: "table.csv", Text: table}}
	if rep.Best != nil {
		best, err := rep.bestConfig(s)
		if err != nil {
			return out, err
		}
		texts = append(texts, runs.Text{Name: "best.yaml", Text: best})
	}
	err = runs.WriteReport(s.Dir, texts, func() ([]string, error) { return rep.plot(s) }, rep, &rep.Files)
	if out.Files = rep.Files; err == nil && rep.Best == nil {
		first := rep.Trials[slices.IndexFunc(rep.Trials, func(t TrialReport) bool { return t.Reason != "" })]
		err = usererror.Errorf("no trial has a score; the first (%s): %s", first.Dirs[0], first.Reason)
	}
	return out, err
}

// bestConfig is the config of the best trial with a run folder of its own, for gpupipe train.
func (rep *Report) bestConfig(s *Sweep) ([]byte, error) {
	composed := s.compose(s.run(rep.Best.Trial-1, s.Seeds[0], 0))
	composed.Put("run.dir", filepath.Join(s.Dir, "best"), s.At("dir"))
	c, err := composed.Config()
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("# The best of %d trials of %s: %s, with %s.\n", len(rep.Trials), filepath.Base(s.File.Path),
		s.Trials[rep.Best.Trial-1].name, s.Metric.text(rep.Best.Score.Mean))
	return append([]byte(text), c.SavedYAML()...), nil
}
