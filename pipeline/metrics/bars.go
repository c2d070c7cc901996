package metrics

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// BarSeries is a bar per group. Y has the heights; a bar whose height is not finite is not drawn. Err has half the
// lengths of the error bars; one that is not finite is not drawn. Both have the length of the groups.
type BarSeries struct {
	Name   string
	Y, Err []float64
}

// Bars draws groups of bars, one of each series per group, into a PNG of 1500 × 900 pixels. The names of the groups
// label the x axis. It is an error if no height is finite.
func Bars(path string, a Axes, groups []string, series ...BarSeries) error {
	f := newFigure(a)
	f.NominalX(groups...)
	f.Y.Padding = 0 // which NominalX has set, like the other properties of the ticks
	f.X.Tick.Label.Font, f.X.Tick.Length, f.X.Tick.Width, f.X.Tick.Color = sans(labelSize), tickLength, vg.Points(0.5), color.White
	f.X.Min, f.X.Max = -0.5, float64(len(groups))-0.5
	drawn := 0
	for i, s := range series {
		if len(s.Y) != len(groups) || len(s.Err) != len(groups) {
			return fmt.Errorf("plot %s: series %q: %d heights and %d errors of %d groups", path, s.Name, len(s.Y), len(s.Err), len(groups))
		}
		bars, tops := s.shapes(i, len(series))
		if len(bars) == 0 {
			continue
		}
		drawn += len(bars)
		polygon, err := plotter.NewPolygon(bars...)
		if err != nil {
			return fmt.Errorf("plot %s: series %q: %w", path, s.Name, err)
		}
		polygon.Color, polygon.LineStyle.Width = palette[i%len(palette)], 0
		f.Add(polygon)
		f.explain(s.Name, polygon)
		if len(tops.XYs) == 0 {
			continue
		}
		errors, err := plotter.NewYErrorBars(tops)
		if err != nil {
			return fmt.Errorf("plot %s: series %q: %w", path, s.Name, err)
		}
		errors.Color, errors.LineStyle.Width, errors.CapWidth = color.Gray{60}, vg.Points(1.2), vg.Points(8)
		f.Add(errors)
	}
	if drawn == 0 {
		return fmt.Errorf("plot %s: no finite height in %d series", path, len(series))
	}
	f.Y.Max += 0.05 * (f.Y.Max - f.Y.Min)
	return f.save(path)
}

// topsWithErrors are the tops of bars that have error bars.
type topsWithErrors struct {
	plotter.XYs
	plotter.YErrors
}

// shapes are the bars of series i of n, and the tops of the bars with error bars.
func (s BarSeries) shapes(i, n int) (bars []plotter.XYer, tops topsWithErrors) {
	width := 0.8 / float64(n)
	for group, y := range s.Y {
		if !Finite(y) {
			continue
		}
		left := float64(group) - 0.4 + width*float64(i)
		right := left + 0.9*width
		bars = append(bars, plotter.XYs{{X: left, Y: 0}, {X: left, Y: y}, {X: right, Y: y}, {X: right, Y: 0}})
		if e := s.Err[group]; Finite(e) {
			tops.XYs = append(tops.XYs, plotter.XY{X: (left + right) / 2, Y: y})
			tops.YErrors = append(tops.YErrors, struct{ Low, High float64 }{e, e})
		}
	}
	return bars, tops
}
