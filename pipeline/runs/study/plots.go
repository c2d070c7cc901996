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
func (rep *Report) plot(g *Grid) (files []string, err error) {
	for _, tuning := range g.tunings() {
		suffix := ".png"
		if tuning != g.tunings()[0] {
			suffix = "-retuned.png"
		}
		if path := filepath.Join(g.Dir, "gaps"+suffix); rep.hasGap(tuning, g.Stages[0]) {
			if err := rep.plotGaps(path, g, tuning); err != nil {
				return nil, usererror.New(err)
			}
			files = append(files, path)
		}
		for _, o := range g.Optimizers {
			for _, kind := range g.curves() {
				path := filepath.Join(g.Dir, kind.file+"-"+o.Label+suffix)
				drawn, err := rep.plotCurves(path, g, tuning, o, kind)
				if err != nil {
					return nil, usererror.New(err)
				}
				if drawn {
					files = append(files, path)
				}
			}
		}
	}
	for _, o := range g.Optimizers {
		path := filepath.Join(g.Dir, "lr-"+o.Label+".png")
		series := rep.rates(g, o)
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
	for _, c := range rep.Cells {
		if c.Tuning == tuning && c.Stages == stages && c.Gap != nil && metrics.Finite(c.Gap.Mean) {
			return true
		}
	}
	return false
}

// plotGaps draws the gaps of all optimizers, a color per mode.
func (rep *Report) plotGaps(path string, g *Grid, tuning string) error {
	var groups []string
	for _, o := range g.Optimizers {
		groups = append(groups, o.Label)
	}
	var series []metrics.BarSeries
	for _, m := range g.Modes {
		if m.Name == SyncMode {
			continue
		}
		s := metrics.BarSeries{Name: m.Title()}
		for _, o := range g.Optimizers {
			gap := rep.find(tuning, g.Stages[0], o.Label, m.Name).Gap
			s.Y, s.Err = append(s.Y, gap.Mean), append(s.Err, gap.Err)
		}
		series = append(series, s)
	}
	axes := metrics.Axes{Title: g.subject() + " each optimizer", Subtitle: rep.gapsSubtitle(tuning), Y: gapAxis}
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
func (g *Grid) curves() []curves {
	var modes []Pipeline
	for _, m := range g.Modes {
		modes = append(modes, Pipeline{Name: m.Title(), Mode: m.Name, Seconds: 1})
	}
	loss, value := "training loss", "loss"
	if g.seldom() { // the training loss is that of each replica's own weights
		loss, value = "validation loss", "val_loss"
	}
	return []curves{
		{"loss", loss, "step", loss, value, modes, func(p Pipeline, c *Cell) string { return fmt.Sprintf("%s (lr %g)", p.Name, *c.LR) }},
		{"time", loss + " over time", "seconds", loss, value, g.Pipelines, func(p Pipeline, _ *Cell) string { return p.Name }},
	}
}

// plotCurves draws an optimizer's losses, the means over the seeds. It draws nothing if all runs diverged at once.
func (rep *Report) plotCurves(path string, g *Grid, tuning string, o Optimizer, kind curves) (drawn bool, err error) {
	var series []metrics.Series
	for _, p := range kind.of {
		c := rep.find(tuning, g.Stages[0], o.Label, p.Mode)
		if c.LR == nil {
			continue
		}
		s, err := rep.meanCurve(g, c, kind.value)
		if err != nil {
			return false, err
		}
		for i := range s.X {
			s.X[i] *= p.Seconds
		}
		s.Name = kind.name(p, c)
		series, drawn = append(series, s), drawn || len(s.X) > 0
	}
	if !drawn {
		return false, nil
	}
	axes := metrics.Axes{Title: o.Label + ": " + kind.title, Subtitle: "mean over the seeds; lower is better", X: kind.x,
		Y: kind.loss + " (nats per token)", FromZero: true}
	return true, metrics.Draw(path, axes, series...)
}

// meanCurve is a loss of a cell's runs by step, the mean over the seeds.
func (rep *Report) meanCurve(g *Grid, c *Cell, value string) (metrics.Series, error) {
	var runs [][]metrics.Record
	for _, seed := range g.Seeds {
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

// meanLoss is a loss by step, the mean over runs, at the steps that all of them have: of summaries, every hundredth, and
// those with a validation loss.
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
	s := metrics.Series{Kind: metrics.Curve}
	for _, step := range slices.Sorted(maps.Keys(counts)) {
		if counts[step] == len(runs) {
			s.X, s.Y = append(s.X, float64(step)), append(s.Y, sums[step]/float64(len(runs)))
		}
	}
	return s
}

// rates are an optimizer's losses by learning rate, the mean over the tuning seeds, a series per mode that was tuned.
// It omits modes without a finite loss.
func (rep *Report) rates(g *Grid, o Optimizer) (out []metrics.Series) {
	losses := map[Run]float64{}
	for _, r := range rep.Runs {
		if r.ValLoss != nil {
			losses[r.Run] = *r.ValLoss
		}
	}
	for _, m := range g.Modes {
		s := metrics.Series{Name: m.Title(), Kind: metrics.Dots}
		for _, lr := range o.LRs {
			var mean float64
			for _, seed := range g.TuneSeeds {
				loss, ok := losses[Run{o.Label, m.Name, g.Stages[0], lr, seed}]
				if !ok {
					loss = math.Inf(1)
				}
				mean += loss / float64(len(g.TuneSeeds))
			}
			if metrics.Finite(mean) {
				s.X, s.Y = append(s.X, lr), append(s.Y, mean)
			}
		}
		if len(s.X) > 0 {
			out = append(out, s)
		}
	}
	return out
}
