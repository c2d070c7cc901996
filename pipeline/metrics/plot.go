package metrics

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Kind is how a series is drawn.
type Kind int

const (
	Curve  Kind = iota // a smoothed line over the points as a faint one, if there are enough points to smooth
	Dots               // points joined by a thin line: few and exact values
	Points             // separate points
	Level              // a dashed horizontal line at Y[0]; drawn only within the range of the other series
)

// Series is one thing to plot. X and Y have the same length. Points that are not finite are not drawn.
type Series struct {
	Name string
	Kind Kind
	X, Y []float64 // Level does not use X
}

// FromRecords returns the series of one measurement by step.
func FromRecords(records []Record, measurement, name string, kind Kind) Series {
	s := Series{Name: name, Kind: kind}
	for _, r := range records {
		if v, ok := r.Values[measurement]; ok {
			s.X, s.Y = append(s.X, float64(r.Step)), append(s.Y, v)
		}
	}
	return s
}

// Axes say what a plot shows.
type Axes struct {
	Title, Subtitle string // optional
	X, Y            string
	Upper           *Upper   // a second scale for x; nil: none
	FromZero        bool     // x begins at 0
	LogX            bool     // x is logarithmic, with a tick at every x that has a point, or at round numbers if some are close
	Names           []string // of x = 0, 1, …; nil: x is a number
}

// ErrNoPoint is wrapped by the error of a plot without any finite point.
var ErrNoPoint = errors.New("no finite point to draw")

// PlotLoss draws the training and the validation loss of a run by step, in nats per token, into a PNG of 1500 × 900
// pixels. The upper axis has the tokens. unigram is the entropy of single tokens in the text: a loss below it is a sign
// of learning more than their frequencies. When no loss is finite, the error wraps [ErrNoPoint].
func PlotLoss(path, title, subtitle string, records []Record, unigram float64) error {
	train := FromRecords(records, "loss", "training loss", Curve)
	if len(train.X) >= smoothFrom {
		train.Name += " (smoothed)"
	}
	val := FromRecords(records, "val_loss", "validation loss", Dots)
	if n := len(val.Y); n > 0 {
		val.Name += fmt.Sprintf(" (last: %.4g)", val.Y[n-1])
	}
	axes := Axes{Title: title, Subtitle: subtitle, X: "step", Y: "loss (nats per token)", FromZero: true}
	if tokens := FromRecords(records, "tokens", "", Curve); len(tokens.X) > 0 {
		axes.Upper = &Upper{Label: "tokens", X: tokens.X, Values: tokens.Y}
	}
	return Draw(path, axes, train, val, Series{Name: "unigram entropy", Kind: Level, Y: []float64{unigram}})
}

// Draw draws series into a PNG of 1500 × 900 pixels. When no curve or dots have a finite point, the error wraps
// [ErrNoPoint].
func Draw(path string, a Axes, series ...Series) error {
	f := newFigure(a)
	if a.LogX {
		f.X.Scale, f.X.Tick.Marker = plot.LogScale{}, everyX(series)
	}
	if len(a.Names) > 0 {
		f.X.Tick.Marker = namedTicks(a.Names)
	}
	drawn := 0
	for i, s := range series {
		points, err := s.points()
		if err != nil {
			return fmt.Errorf("plot %s: %w", path, err)
		}
		if len(points) == 0 || s.Kind == Level {
			continue
		}
		drawn++
		if err := s.draw(f, points, palette[i%len(palette)]); err != nil {
			return fmt.Errorf("plot %s: series %q: %w", path, s.Name, err)
		}
	}
	if drawn == 0 {
		return fmt.Errorf("plot %s: %w in %d series", path, ErrNoPoint, len(series))
	}
	for _, s := range series {
		if s.Kind == Level {
			s.level(f)
		}
	}
	if a.FromZero {
		f.X.Min = min(f.X.Min, 0)
	}
	if a.LogX {
		if f.X.Min <= 0 {
			return fmt.Errorf("plot %s: found x = %g, expected positive numbers on a logarithmic axis", path, f.X.Min)
		}
		f.X.Min, f.X.Max = f.X.Min/1.2, f.X.Max*1.2 // there may be one x only
	}
	if n := len(a.Names); n > 0 {
		f.X.Min, f.X.Max = -0.5, float64(n)-0.5
	}
	f.widen()
	return f.save(path)
}

// widen adds space above and below the data, so that it does not touch the frame.
func (f *figure) widen() {
	if space := 0.03 * (f.Y.Max - f.Y.Min); space > 0 {
		f.Y.Min, f.Y.Max = f.Y.Min-space, f.Y.Max+space
	}
}

// namedTicks are ticks at 0, 1, ….
func namedTicks(names []string) (out plot.ConstantTicks) {
	for i, name := range names {
		out = append(out, plot.Tick{Value: float64(i), Label: name})
	}
	return out
}

// everyX is a tick at every x that has a finite point, or at round numbers if some are too close to each other.
func everyX(series []Series) plot.Ticker {
	var xs []float64
	for _, s := range series {
		for i, x := range s.X {
			if i < len(s.Y) && Finite(s.Y[i]) {
				xs = append(xs, x)
			}
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	var out plot.ConstantTicks
	for i, x := range xs {
		if i > 0 && math.Log(x/xs[i-1]) < leastGap*math.Log(xs[len(xs)-1]/xs[0]) {
			return roundTicks{}
		}
		out = append(out, logTick(x))
	}
	return out
}

// leastGap is the share of a logarithmic axis between two ticks whose labels do not touch.
const leastGap = 0.07

func logTick(x float64) plot.Tick {
	return plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'g', 10, 64)}
}

// roundTicks are ticks of a logarithmic axis at 1, 2 and 5 times powers of ten; over many decades, at powers of ten.
type roundTicks struct{}

func (roundTicks) Ticks(lo, hi float64) (out []plot.Tick) {
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	for power := first; power <= last; power++ {
		for _, m := range []float64{1, 2, 5} {
			text := fmt.Sprintf("%ge%g", m, power)
			x, err := strconv.ParseFloat(text, 64) // exact, unlike a product
			if err != nil || x < lo || x > hi {
				continue
			}
			tick := logTick(x)
			if m > 1 && last-first > 4 {
				tick.Label = ""
			}
			out = append(out, tick)
		}
	}
	return out
}

// Finite reports whether a number is neither infinite nor NaN.
func Finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// points are the finite points of the series.
func (s Series) points() (plotter.XYs, error) {
	if s.Kind == Level {
		if len(s.Y) != 1 {
			return nil, fmt.Errorf("series %q: found %d values, expected one for a level", s.Name, len(s.Y))
		}
		return nil, nil
	}
	if len(s.X) != len(s.Y) {
		return nil, fmt.Errorf("series %q: found %d values of x and %d of y, expected as many", s.Name, len(s.X), len(s.Y))
	}
	var out plotter.XYs
	for i, y := range s.Y {
		if Finite(s.X[i]) && Finite(y) {
			out = append(out, plotter.XY{X: s.X[i], Y: y})
		}
	}
	return out, nil
}

func (s Series) draw(f *figure, points plotter.XYs, c color.NRGBA) error {
	switch s.Kind {
	case Dots:
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = c, vg.Points(1)
		marks.Shape, marks.Color, marks.Radius = draw.CircleGlyph{}, c, vg.Points(3)
		f.Add(line, marks)
		f.explain(s.Name, line, marks)
		return nil
	case Points:
		marks, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		marks.Shape, marks.Color, marks.Radius = draw.CircleGlyph{}, c, vg.Points(3.5)
		f.Add(marks)
		f.explain(s.Name, marks)
		return nil
	case Curve:
		return s.curve(f, points, c)
	}
	return errors.New("unknown kind")
}

// level draws a Level if it is in the range that is drawn already. It does not extend the range.
func (s Series) level(f *figure) {
	if y := s.Y[0]; y >= f.Y.Min && y <= f.Y.Max {
		line := plotter.NewFunction(func(float64) float64 { return y })
		line.Color, line.Width, line.Dashes = mutedColor, vg.Points(1), []vg.Length{vg.Points(6), vg.Points(4)}
		f.Add(line)
		f.explain(fmt.Sprintf("%s (%.4g)", s.Name, y), line)
	}
}

func (s Series) curve(f *figure, points plotter.XYs, c color.NRGBA) error {
	line, err := plotter.NewLine(smoothed(points))
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(1.8)
	if len(points) >= smoothFrom {
		raw, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		faint := c
		faint.A = 80
		raw.Color, raw.Width = faint, vg.Points(0.8)
		f.Add(raw)
	}
	f.Add(line)
	f.explain(s.Name, line)
	return nil
}

// smoothFrom is the number of points from which a curve is smoothed.
const smoothFrom = 50

// smoothed returns the centered moving mean over about a fiftieth of the points. The window is centered, so that the
// mean does not lag behind a falling loss, and narrows toward the ends. Fewer than smoothFrom points are returned
// unchanged.
func smoothed(points plotter.XYs) plotter.XYs {
	n := len(points)
	if n < smoothFrom {
		return points
	}
	sums := make([]float64, n+1) // of all points before each
	for i, q := range points {
		sums[i+1] = sums[i] + q.Y
	}
	out := make(plotter.XYs, n)
	for i, q := range points {
		half := min(n/100+1, i, n-1-i)
		out[i] = plotter.XY{X: q.X, Y: (sums[i+half+1] - sums[i-half]) / float64(2*half+1)}
	}
	return out
}
