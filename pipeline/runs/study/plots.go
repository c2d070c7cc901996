package study

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

const (
	lossAxis = "validation loss (nats per token)"
	gapAxis  = "gap to sync (nats per token), lower is better"
)

// plot draws the gaps, the training losses and the losses by learning rate, at the grid's first number of stages. It
// returns the files.
func (rep *Report) plot(s *Study) (files []string, err error) {
	for _, tuning := range s.tunings() {
		suffix := ".png"
		if tuning != s.tunings()[0] {
			suffix = "-retuned.png"
		}
		if path := filepath.Join(s.Dir, "gaps"+suffix); rep.hasGap(tuning, s.Stages[0]) {
			if err := rep.plotGaps(path, s, tuning); err != nil {
				return nil, usererror.New(err)
			}
			files = append(files, path)
		}
		for _, o := range s.Optimizers {
			for _, kind := range s.curves() {
				path := filepath.Join(s.Dir, kind.file+"-"+o.Label+suffix)
				drawn, err := rep.plotCurves(path, s, tuning, o, kind)
				if err != nil {
					return nil, usererror.New(err)
				}
				if drawn {
					files = append(files, path)
				}
			}
		}
	}
	for _, o := range s.Optimizers {
		path := filepath.Join(s.Dir, "lr-"+o.Label+".png")
		series := rep.rates(s, o)
		if len(series) == 0 {
			continue
		}
		axes := metrics.Axes{Title: o.Label + ": validation loss by learning rate", Subtitle: "mean over the tuning seeds; lower is better",
			X: "learning rate", Y: lossAxis, LogX: true}
		if err := metrics.Draw(path, axes, series...); err != nil {
			return nil, usererror.New(err)
		}
		files = append(files, path)
	}
	return files, nil
}

func (rep *Report) hasGap(tuning string, stages int) bool {
	return slices.ContainsFunc(rep.Cells, func(c Cell) bool {
		return c.Tuning == tuning && c.Stages == stages && c.Gap != nil && metrics.Finite(c.Gap.Mean)
	})
}

// plotGaps draws the gaps of all optimizers, a color per mode.
func (rep *Report) plotGaps(path string, s *Study, tuning string) error {
	var groups []string
	for _, o := range s.Optimizers {
		groups = append(groups, o.Label)
	}
	var series []metrics.BarSeries
	for _, m := range s.Modes {
		if m.Name == SyncMode {
			continue
		}
		curve := metrics.BarSeries{Name: m.Title()}
		for _, o := range s.Optimizers {
			gap := rep.find(tuning, s.Stages[0], o.Label, m.Name).Gap
			curve.Y, curve.Err = append(curve.Y, gap.Mean), append(curve.Err, gap.Err)
		}
		series = append(series, curve)
	}
	axes := metrics.Axes{Title: s.subject() + " each optimizer", Subtitle: rep.gapsSubtitle(tuning), Y: gapAxis}
	return metrics.Bars(path, axes, groups, series...)
}

// gapsSubtitle says what the bars and their error bars are.
func (rep *Report) gapsSubtitle(tuning string) string {
	rate := "learning rate tuned without delay"
	if tuning == Each {
		rate = "learning rate tuned in every mode"
	}
	if len(rep.Seeds) == 1 {
		return "validation loss minus that of sync, one seed; " + rate
	}
	return fmt.Sprintf("validation loss minus that of sync, mean ± standard error over %d seeds; %s", len(rep.Seeds), rate)
}

// curves is a kind of plot of an optimizer's losses.
type curves struct {
	file, title, x string     // the first part of the file's name, what follows the optimizer in the title, the axis
	loss, value    string     // which loss, and its name in metrics.jsonl
	of             []Pipeline // by what the steps of a mode are multiplied
	name           func(p Pipeline, c *Cell) string
}

// curves are the kinds of plots: by step, a curve per mode, and by time, a curve per pipeline.
func (s *Study) curves() []curves {
	var modes []Pipeline
	for _, m := range s.Modes {
		modes = append(modes, Pipeline{Name: m.Title(), Mode: m.Name, Seconds: 1})
	}
	loss, value := "training loss", "loss"
	if s.seldom() { // the training loss is of each replica's own weights
		loss, value = "validation loss", "val_loss"
	}
	return []curves{
		{"loss", loss, "step", loss, value, modes, func(p Pipeline, c *Cell) string { return fmt.Sprintf("%s (lr %g)", p.Name, *c.LR) }},
		{"time", loss + " over time", "seconds", loss, value, s.Pipelines, func(p Pipeline, _ *Cell) string { return p.Name }},
	}
}

// plotCurves draws an optimizer's losses, the means over the seeds. It draws nothing if all runs diverged at once.
func (rep *Report) plotCurves(path string, s *Study, tuning string, o Optimizer, kind curves) (drawn bool, err error) {
	var series []metrics.Series
	for _, p := range kind.of {
		c := rep.find(tuning, s.Stages[0], o.Label, p.Mode)
		if c.LR == nil {
			continue
		}
		curve, err := rep.meanCurve(s, c, kind.value)
		if err != nil {
			return false, err
		}
		for i := range curve.X {
			curve.X[i] *= p.Seconds
		}
		curve.Name = kind.name(p, c)
		series, drawn = append(series, curve), drawn || len(curve.X) > 0
	}
	if !drawn {
		return false, nil
	}
	axes := metrics.Axes{Title: o.Label + ": " + kind.title, Subtitle: "mean over the seeds; lower is better", X: kind.x,
		Y: kind.loss + " (nats per token)", FromZero: true}
	return true, metrics.Draw(path, axes, series...)
}

// meanCurve is a loss of a cell's runs by step, the mean over the seeds.
func (rep *Report) meanCurve(s *Study, c *Cell, value string) (metrics.Series, error) {
	var runs [][]metrics.Record
	for _, seed := range s.Seeds {
		records, err := metrics.Read(filepath.Join(rep.dir(Run{c.Optimizer, c.Mode, c.Stages, *c.LR, seed}), "metrics.jsonl"))
		if err != nil {
			return metrics.Series{}, err
		}
		runs = append(runs, records)
	}
	return meanLoss(runs, value), nil
}

// dir is the folder that holds the metrics of a run, or the metrics of its summary.
func (rep *Report) dir(r Run) string {
	return rep.Runs[slices.IndexFunc(rep.Runs, func(e Ended) bool { return e.Run == r })].Dir
}

// meanLoss is a loss by step, the mean over runs, at the steps that all of them have: of summaries, every hundredth,
// and those with a validation loss.
func meanLoss(runs [][]metrics.Record, value string) metrics.Series {
	sums, counts := map[int]float64{}, map[int]int{}
	for _, records := range runs {
		for _, r := range records {
			if loss, ok := r.Values[value]; ok {
				sums[r.Step] += loss
				counts[r.Step]++
			}
		}
	}
	curve := metrics.Series{Kind: metrics.Curve}
	for _, step := range slices.Sorted(maps.Keys(counts)) {
		if counts[step] == len(runs) {
			curve.X, curve.Y = append(curve.X, float64(step)), append(curve.Y, sums[step]/float64(len(runs)))
		}
	}
	return curve
}

// rates are an optimizer's losses by learning rate, the mean over the tuning seeds, a series per mode that was tuned.
// It omits modes without a finite loss.
func (rep *Report) rates(s *Study, o Optimizer) (out []metrics.Series) {
	losses := map[Run]float64{}
	for _, r := range rep.Runs {
		if r.ValLoss != nil {
			losses[r.Run] = *r.ValLoss
		}
	}
	for _, m := range s.Modes {
		curve := metrics.Series{Name: m.Title(), Kind: metrics.Dots}
		for _, lr := range o.LRs {
			var mean float64
			for _, seed := range s.TuneSeeds {
				loss, ok := losses[Run{o.Label, m.Name, s.Stages[0], lr, seed}]
				if !ok {
					loss = math.Inf(1)
				}
				mean += loss / float64(len(s.TuneSeeds))
			}
			if metrics.Finite(mean) {
				curve.X, curve.Y = append(curve.X, lr), append(curve.Y, mean)
			}
		}
		if len(curve.X) > 0 {
			out = append(out, curve)
		}
	}
	return out
}
