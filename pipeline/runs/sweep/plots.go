package sweep

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// plot draws the scores over each key that has several values among the trials with a score. It returns the files.
func (rep *Report) plot(s *Sweep) (files []string, err error) {
	for i, k := range s.Keys {
		axes, series := rep.scatter(s, i)
		if series == nil {
			continue
		}
		path := filepath.Join(s.Dir, "score-"+strings.ReplaceAll(k.Name, ".", "-")+".png")
		if err := metrics.Draw(path, axes, series...); err != nil {
			return nil, usererror.New(err)
		}
		files = append(files, path)
	}
	return files, nil
}

// scatter are the scores of the trials over a key, a series for each rung. It is nil if there is nothing to compare.
func (rep *Report) scatter(s *Sweep, key int) (axes metrics.Axes, series []metrics.Series) {
	var scored []TrialReport
	var values []value // of trials with a score
	for _, t := range rep.Trials {
		if metrics.Finite(t.Score.Mean) {
			scored = append(scored, t)
			if v := t.values[key]; !slices.ContainsFunc(values, v.equals) {
				values = append(values, v)
			}
		}
	}
	if len(values) < 2 {
		return axes, nil
	}
	goal := map[string]string{Min: "lower", Max: "higher"}[rep.Goal]
	axes = metrics.Axes{Title: fmt.Sprintf("%s by %s", rep.Metric, s.Keys[key].Name), X: s.Keys[key].Name, Y: rep.Metric,
		Subtitle: fmt.Sprintf("%d trials, each at its last step; %s is better", len(scored), goal)}
	place := func(v value) float64 { return v.number }
	if slices.ContainsFunc(values, func(v value) bool { return math.IsNaN(v.number) }) {
		for _, v := range allValues(s.Keys[key], values) {
			axes.Names = append(axes.Names, v.text)
		}
		place = func(v value) float64 { return float64(slices.Index(axes.Names, v.text)) }
	} else {
		axes.LogX = logarithmic(s.Keys[key], values)
	}
	for rung := range s.levels() {
		one := metrics.Series{Name: rep.Metric, Kind: metrics.Points}
		if s.levels() > 1 {
			one.Name = fmt.Sprintf("after %d steps", s.Rungs[rung])
		}
		for _, t := range scored {
			if t.rung == rung {
				one.X, one.Y = append(one.X, place(t.values[key])), append(one.Y, t.Score.Mean)
			}
		}
		if len(one.X) > 0 {
			series = append(series, one)
		}
	}
	return axes, series
}

// allValues are the values of a key in the order of the file, or the values that trials had if the key has a range.
func allValues(k Key, tried []value) []value {
	if k.values != nil {
		return k.values
	}
	return tried
}

// logarithmic reports whether numbers are drawn on a logarithmic axis: numbers of a logarithmic range, or positive
// numbers that span a factor of ten.
func logarithmic(k Key, values []value) bool {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		lo, hi = min(lo, v.number), max(hi, v.number)
	}
	return lo > 0 && (hi >= 10*lo || k.interval != nil && k.interval.Log)
}
