package sweep

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Metric is a measurement that scores a run, by its value at the last step.
type Metric struct {
	Name  string // in metrics.jsonl
	About string
	Goal  string // Min or Max
}

// Goals of a metric: whether the smallest or the largest score is best.
const (
	Min = "min"
	Max = "max"
)

// Metrics is the table of metrics whose goal is known, the default one first.
func Metrics() []Metric {
	return []Metric{
		{"val_loss", "validation loss, nats per token", Min},
		{"val_bits_per_byte", "the same per byte of text, for comparisons of tokenizers", Min},
		{"loss", "training loss, the mean over the last tenth of the steps", Min},
		{"tokens_per_s", "speed at the end", Max},
	}
}

// newMetric returns the metric of a name. Without a goal it has the goal of the table.
func newMetric(name, goal string) (Metric, error) {
	table := Metrics()
	m := Metric{Name: name, Goal: goal}
	i := slices.IndexFunc(table, func(m Metric) bool { return m.Name == name })
	if i >= 0 {
		m = table[i]
		if goal != "" {
			m.Goal = goal
		}
	}
	switch {
	case i < 0 && goal == "":
		var names []string
		for _, m := range table {
			names = append(names, m.Name)
		}
		return m, fmt.Errorf("metric: found %q, expected %s, or with goal: min or goal: max another name of metrics.jsonl", name,
			strings.Join(names, ", "))
	case m.Goal != Min && m.Goal != Max:
		return m, fmt.Errorf("goal: found %q, expected %s or %s", goal, Min, Max)
	}
	return m, nil
}

// ofValidation reports whether the metric is measured on validation text.
func (m Metric) ofValidation() bool { return strings.HasPrefix(m.Name, "val_") }

// ofTask reports whether the metric is measured by a task of train.eval_tasks.
func (m Metric) ofTask() bool { return strings.HasPrefix(m.Name, "tasks/") }

// score is the metric of a run that has ended; ok is false if it has none.
func (m Metric) score(o runs.Outcome) (score float64, ok bool) {
	if o.Diverged != "" || o.Failed != "" {
		return math.NaN(), false
	}
	score, ok = o.Metrics[m.Name]
	return score, ok
}

// cost orders scores: the best has the smallest. It is infinite for a score that is NaN.
func (m Metric) cost(score float64) float64 {
	switch {
	case math.IsNaN(score):
		return math.Inf(1)
	case m.Goal == Max:
		return -score
	}
	return score
}

// complete refuses the outcome of a run that ended without the metric.
func (m Metric) complete(o runs.Outcome) error {
	if _, ok := m.score(o); ok || o.Diverged != "" {
		return nil
	}
	return fmt.Errorf("metric: the run ended without %s", m.Name)
}
