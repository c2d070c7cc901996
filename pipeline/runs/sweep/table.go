package sweep

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// text is a score with its name.
func (m Metric) text(score float64) string { return m.Name + " " + m.format(score) }

func (m Metric) format(score float64) string {
	if math.Abs(score) >= 1000 {
		return fmt.Sprintf("%.0f", score)
	}
	return fmt.Sprintf("%.4f", score)
}

// Markdown is the report as a page.
func (rep *Report) Markdown(s *Sweep) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Sweep of %s\n\n%s\n\n%s", strings.Join(s.keyNames(), ", "), rep.summary(), runs.MarkdownTable(rep.rows(s)))
	if len(rep.Notes) > 0 {
		fmt.Fprintf(&b, "\n## Notes\n\n- %s\n", strings.Join(rep.Notes, "\n- "))
	}
	return b.String()
}

func (s *Sweep) keyNames() (names []string) {
	for _, k := range s.Keys {
		names = append(names, k.Name)
	}
	return names
}

// summary describes the search, the score and the seeds.
func (rep *Report) summary() string {
	text := fmt.Sprintf("%d trials by %s search", len(rep.Trials), rep.Search)
	if rep.Search == Halving {
		text = fmt.Sprintf("%d trials by successive halving, compared after %s steps", len(rep.Trials), printable.List(rep.Rungs))
	}
	best := "the smallest is best"
	if rep.Goal == Max {
		best = "the largest is best"
	}
	text += fmt.Sprintf(". The score is %s at the last step; %s", rep.Metric, best)
	if len(rep.Seeds) > 1 {
		text += fmt.Sprintf("; mean ± standard error over %d seeds", len(rep.Seeds))
	}
	return text + "."
}

// rows are the table of trials.
func (rep *Report) rows(s *Sweep) [][]string {
	head := append([]string{"trial"}, s.keyNames()...)
	rows := [][]string{append(head, rep.Metric, "steps", "status")}
	for _, t := range rep.Trials {
		row := []string{strconv.Itoa(t.Trial)}
		for _, v := range t.values {
			row = append(row, strings.ReplaceAll(v.text, "|", `\|`))
		}
		status := t.Status
		if t.Reason != "" {
			status += ": " + shortened(t.Reason)
		}
		rows = append(rows, append(row, t.scoreText(s.Metric), strconv.Itoa(t.Steps), status))
	}
	return rows
}

// scoreText is the score of a trial with its standard error.
func (t TrialReport) scoreText(m Metric) string {
	switch {
	case !metrics.Finite(t.Score.Mean):
		return "–"
	case !metrics.Finite(t.Score.Err):
		return m.format(t.Score.Mean)
	}
	return m.format(t.Score.Mean) + " ± " + m.format(t.Score.Err)
}

// reasonLength is the length from which reasons are cut in the table. results.json has them whole.
const reasonLength = 100

func shortened(reason string) string {
	reason = strings.ReplaceAll(strings.Join(strings.Fields(reason), " "), "|", `\|`)
	if runes := []rune(reason); len(runes) > reasonLength {
		return string(runes[:reasonLength]) + "…"
	}
	return reason
}

// csv has a line per trial. A value that is not finite is empty.
func (rep *Report) csv(s *Sweep) ([]byte, error) {
	head := append([]string{"trial"}, s.keyNames()...)
	rows := [][]string{append(head, rep.Metric, rep.Metric+"_stderr", "seeds", "steps", "status", "reason")}
	for _, t := range rep.Trials {
		row := []string{strconv.Itoa(t.Trial)}
		for _, v := range t.values {
			row = append(row, v.text)
		}
		rows = append(rows, append(row, runs.Exact(runs.Number(t.Score.Mean)), runs.Exact(runs.Number(t.Score.Err)),
			strconv.Itoa(len(t.Scores)), strconv.Itoa(t.Steps), t.Status, t.Reason))
	}
	return runs.CSV(rows)
}
