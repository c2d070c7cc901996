package metrics

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Kind is how a series is drawn.
type Kind int

const (
	Curve Kind = iota // faint line under a smoothed one, where there are points enough to smooth
	Dots              // points joined by a thin line: few and exact values
	Level             // a dashed horizontal line at Y[0], such as the unigram entropy
)

// Series is one thing to plot. X and Y are equally long; points that are not finite are left out.
type Series struct {
	Name string
	Kind Kind
	X, Y []float64 // X is not used by Level
}

// FromRecords makes a series of one measurement, by step.
func FromRecords(records []Record, measurement, name string, kind Kind) Series {
	s := Series{Name: name, Kind: kind}
	for _, r := range records {
		if v, ok := r.Values[measurement]; ok {
			s.X, s.Y = append(s.X, float64(r.Step)), append(s.Y, v)
		}
	}
	return s
}

// palette is legible to the colour-blind (Okabe and Ito).
var palette = [...]color.NRGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {86, 180, 233, 255}, {230, 159, 0, 255}}

// Axes say what a plot shows.
type Axes struct {
	X, Y string
	LogX bool // logarithmic, with a tick at every x that has a point
}

// ErrNoPoint is wrapped where there is nothing to draw.
var ErrNoPoint = errors.New("no finite point to draw")

// Plot draws series of the loss (nats a token, by step) into a PNG of 1500 × 900 pixels. When no curve
// or dots have a finite point, the error wraps ErrNoPoint.
func Plot(path string, series ...Series) error {
	return Draw(path, Axes{X: "step", Y: "loss (nats per token)"}, series...)
}

// Draw is Plot of anything.
func Draw(path string, a Axes, series ...Series) error {
	p := newPlot(a)
	if a.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, everyX(series)
	}
	drawn := 0
	for i, s := range series {
		points, err := s.points()
		if err != nil {
			return fmt.Errorf("plot %s: %w", path, err)
		}
		if len(points) == 0 {
			continue
		}
		if s.Kind != Level {
			drawn++
		}
		if err := s.draw(p, points, palette[i%len(palette)]); err != nil {
			return fmt.Errorf("plot %s: series %q: %w", path, s.Name, err)
		}
	}
	if drawn == 0 {
		return fmt.Errorf("plot %s: %w in %d series", path, ErrNoPoint, len(series))
	}
	if a.LogX {
		if p.X.Min <= 0 {
			return fmt.Errorf("plot %s: found x = %g, expected positive numbers on a logarithmic axis", path, p.X.Min)
		}
		p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.2 // there may be one x only
	}
	return save(p, path)
}

// everyX is a tick at every x of the points to draw.
func everyX(series []Series) plot.ConstantTicks {
	var out plot.ConstantTicks
	seen := map[float64]bool{}
	for _, s := range series {
		for i, x := range s.X {
			if i < len(s.Y) && !math.IsNaN(s.Y[i]-s.Y[i]) && !seen[x] {
				seen[x] = true
				out = append(out, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'g', 10, 64)})
			}
		}
	}
	return out
}

// newPlot is an empty plot in the common style.
func newPlot(a Axes) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.X.Label.Text, p.Y.Label.Text = a.X, a.Y
	p.X.Padding, p.Y.Padding = vg.Points(4), vg.Points(4)
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{}, ticks{}
	for _, size := range []*font.Length{&p.X.Label.TextStyle.Font.Size, &p.Y.Label.TextStyle.Font.Size, &p.Legend.TextStyle.Font.Size} {
		*size = vg.Points(12)
	}
	p.Legend.Top, p.Legend.Padding = true, vg.Points(3)
	p.Legend.XOffs, p.Legend.YOffs = -vg.Points(8), -vg.Points(8)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{225}, color.Gray{240}
	p.Add(grid)
	return p
}

func save(p *plot.Plot, path string) error {
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(10*vg.Inch, 6*vg.Inch), vgimg.UseDPI(150))}
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(8), -vg.Points(14), vg.Points(8), -vg.Points(10)))
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := canvas.WriteTo(w)
		return err
	})
}

func (s Series) points() (plotter.XYs, error) {
	if s.Kind != Level && len(s.X) != len(s.Y) {
		return nil, fmt.Errorf("series %q: %d values of x and %d of y", s.Name, len(s.X), len(s.Y))
	}
	if s.Kind == Level && len(s.Y) != 1 {
		return nil, fmt.Errorf("series %q: a level has one value, found %d", s.Name, len(s.Y))
	}
	var out plotter.XYs
	for i, y := range s.Y {
		x := 0.0
		if s.Kind != Level {
			x = s.X[i]
		}
		if !math.IsNaN(x-x) && !math.IsNaN(y-y) { // Inf − Inf is NaN too
			out = append(out, plotter.XY{X: x, Y: y})
		}
	}
	return out, nil
}

func (s Series) draw(p *plot.Plot, points plotter.XYs, c color.NRGBA) error {
	switch s.Kind {
	case Level:
		level := plotter.NewFunction(func(float64) float64 { return points[0].Y })
		level.Color, level.Width, level.Dashes = color.Gray{90}, vg.Points(1.2), []vg.Length{vg.Points(6), vg.Points(4)}
		p.Add(level)
		p.Y.Min, p.Y.Max = min(p.Y.Min, points[0].Y), max(p.Y.Max, points[0].Y)
		p.Legend.Add(fmt.Sprintf("%s (%.4g)", s.Name, points[0].Y), level)
		return nil
	case Dots:
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = c, vg.Points(1)
		marks.Shape, marks.Color, marks.Radius = draw.CircleGlyph{}, c, vg.Points(3)
		p.Add(line, marks)
		p.Legend.Add(s.Name, line, marks)
		return nil
	case Curve:
		return s.curve(p, points, c)
	}
	return errors.New("unknown kind")
}

func (s Series) curve(p *plot.Plot, points plotter.XYs, c color.NRGBA) error {
	smooth := smoothed(points)
	line, err := plotter.NewLine(smooth)
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
		p.Add(raw)
	}
	p.Add(line)
	p.Legend.Add(s.Name, line)
	return nil
}

// smoothFrom is how many points a curve needs to be smoothed.
const smoothFrom = 50

// smoothed is the mean of about a fiftieth of the points around each; centred, so that it does not lag behind a
// falling loss, and so narrower toward the ends. Fewer than smoothFrom points stay as they are.
func smoothed(points plotter.XYs) plotter.XYs {
	n := len(points)
	if n < smoothFrom {
		return points
	}
	before := make([]float64, n+1) // sums of all points before each
	for i, q := range points {
		before[i+1] = before[i] + q.Y
	}
	out := make(plotter.XYs, n)
	for i, q := range points {
		half := min(n/100+1, i, n-1-i)
		out[i] = plotter.XY{X: q.X, Y: (before[i+half+1] - before[i-half]) / float64(2*half+1)}
	}
	return out
}

// ticks are five to twelve round numbers, each labelled.
type ticks struct{}

func (ticks) Ticks(lo, hi float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/5)))
	for _, by := range []float64{5, 2} {
		if step*by <= (hi-lo)/5 {
			step *= by
			break
		}
	}
	var out []plot.Tick
	for i := math.Ceil(lo / step); i*step <= hi && len(out) < 20; i++ {
		out = append(out, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 10, 64)})
	}
	return out
}
