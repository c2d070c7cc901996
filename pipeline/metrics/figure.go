package metrics

import (
	"image/color"
	"image/png"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	imagefont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Sizes of a figure: 1500 × 900 pixels. Lengths are in points of 1/72 inch.
const (
	figureWidth  = 10 * vg.Inch
	figureHeight = 6 * vg.Inch
	figureDPI    = 150

	titleSize, labelSize, tickSize vg.Length = 16, 12, 11

	titleHeight    vg.Length = 24
	subtitleHeight vg.Length = 20
	legendHeight   vg.Length = 24
	upperHeight    vg.Length = 36
	swatchWidth    vg.Length = 22
	tickLength     vg.Length = 4
)

// pngEncoder takes half the time of the default, and its files are a few percent larger.
var pngEncoder = png.Encoder{CompressionLevel: png.BestSpeed}

// palette is legible to the color-blind (Okabe and Ito).
var palette = [...]color.NRGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {86, 180, 233, 255},
	{230, 159, 0, 255}, {90, 90, 90, 255}, {240, 228, 66, 255}}

var (
	axisColor  = color.Gray{110}
	mutedColor = color.Gray{90}
	gridColor  = color.Gray{228}
)

// figure is a plot with a title, a legend and, if needed, a second scale on the upper axis.
type figure struct {
	*plot.Plot
	axes   Axes
	legend []legendEntry
}

// legendEntry is a name with samples of how its data are drawn.
type legendEntry struct {
	name    string
	samples []plot.Thumbnailer
}

// newFigure is an empty figure in the common style.
func newFigure(a Axes) *figure {
	p := plot.New()
	p.BackgroundColor = color.White
	p.X.Label.Text, p.Y.Label.Text = a.X, a.Y
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{}, ticks{}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Padding = 0
		axis.Color, axis.Tick.Color, axis.Tick.Length = axisColor, axisColor, tickLength
		axis.Label.Padding = vg.Points(4)
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans(labelSize), sans(tickSize)
	}
	p.X.Label.Position = draw.PosCenter
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColor, color.Gray{244}
	p.Add(grid)
	return &figure{Plot: p, axes: a}
}

// explain adds an entry to the legend.
func (f *figure) explain(name string, samples ...plot.Thumbnailer) {
	f.legend = append(f.legend, legendEntry{name, samples})
}

func sans(size vg.Length) font.Font {
	f := font.From(plot.DefaultFont, size)
	f.Variant = "Sans"
	return f
}

// save writes the figure as a PNG.
func (f *figure) save(path string) error {
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(figureWidth, figureHeight), vgimg.UseDPI(figureDPI))}
	whole := draw.Crop(draw.New(canvas), vg.Points(12), -vg.Points(20), vg.Points(10), -vg.Points(14))
	body := whole
	body.Max.Y -= f.header(whole, 0, false)
	data := f.DataCanvas(body)
	f.header(whole, data.Min.X, true)
	f.Draw(body)
	if f.axes.Upper != nil {
		f.drawUpper(data)
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		return pngEncoder.Encode(w, canvas.Image())
	})
}

// header draws the title, the subtitle and the legend at the top, from left on, and returns the height of these and of
// the upper axis. With paint false, it draws nothing.
func (f *figure) header(c draw.Canvas, left vg.Length, paint bool) (height vg.Length) {
	bold := sans(titleSize)
	bold.Weight = imagefont.WeightBold
	for _, line := range []struct {
		text   string
		font   font.Font
		color  color.Color
		height vg.Length
	}{{f.axes.Title, bold, color.Black, titleHeight}, {f.axes.Subtitle, sans(labelSize), mutedColor, subtitleHeight}} {
		if line.text == "" {
			continue
		}
		if paint {
			style := textStyle(line.font, line.color, draw.XLeft, draw.YTop)
			c.FillText(style, vg.Point{X: left, Y: c.Max.Y - height}, line.text)
		}
		height += line.height
	}
	for _, row := range f.legendRows(c.Max.X - left) {
		if paint {
			drawLegend(c, row, left, c.Max.Y-height)
		}
		height += legendHeight
	}
	if f.axes.Upper != nil {
		height += upperHeight
	}
	return height
}

// legendStyle is the style of the legend's text.
func legendStyle() draw.TextStyle {
	return textStyle(sans(labelSize), color.Black, draw.XLeft, draw.YCenter)
}

// width is the width of an entry, up to the next one in its row.
func (e legendEntry) width() vg.Length { return swatchWidth + 6 + legendStyle().Width(e.name) + 20 }

// legendRows divides the legend into rows of a width. There is at least one row.
func (f *figure) legendRows(width vg.Length) (rows [][]legendEntry) {
	var row []legendEntry
	used := vg.Length(0)
	for _, e := range f.legend {
		if used += e.width(); used > width && len(row) > 0 {
			rows, row, used = append(rows, row), nil, e.width()
		}
		row = append(row, e)
	}
	return append(rows, row)
}

// drawLegend draws a row of the legend, from left on, below top.
func drawLegend(c draw.Canvas, row []legendEntry, left, top vg.Length) {
	style := legendStyle()
	middle := top - legendHeight/2 + 2
	for _, e := range row {
		swatch := c
		swatch.Rectangle = vg.Rectangle{Min: vg.Point{X: left, Y: middle - 6}, Max: vg.Point{X: left + swatchWidth, Y: middle + 4}}
		for _, s := range e.samples {
			s.Thumbnail(&swatch)
		}
		c.FillText(style, vg.Point{X: left + swatchWidth + 6, Y: middle}, e.name)
		left += e.width()
	}
}

func textStyle(f font.Font, c color.Color, x draw.XAlignment, y draw.YAlignment) draw.TextStyle {
	return draw.TextStyle{Font: f, Color: c, XAlign: x, YAlign: y, Handler: plot.DefaultTextHandler}
}

// drawUpper draws the second scale above the data.
func (f *figure) drawUpper(data draw.Canvas) {
	x, _ := f.Transforms(&data)
	line := draw.LineStyle{Color: axisColor, Width: f.X.Width}
	y := data.Max.Y
	data.StrokeLine2(line, data.Min.X, y, data.Max.X, y)
	style := textStyle(sans(tickSize), color.Black, draw.XCenter, draw.YBottom)
	for _, t := range f.axes.Upper.ticks(f.X.Max) {
		at := x(t.Value)
		data.StrokeLine2(line, at, y, at, y+tickLength)
		data.FillText(style, vg.Point{X: at, Y: y + tickLength + 1}, t.Label)
	}
	style.Font = sans(labelSize)
	data.FillText(style, vg.Point{X: (data.Min.X + data.Max.X) / 2, Y: y + tickLength + tickSize + 5}, f.axes.Upper.Label)
}

// Upper is a second scale for the x axis, such as tokens above steps. Values[i] is its value at X[i]; both ascend. The
// scale is 0 at x = 0, and linear between points.
type Upper struct {
	Label     string
	X, Values []float64
}

// ticks are round values of the scale, each at its x, up to limit.
func (u *Upper) ticks(limit float64) []plot.Tick {
	if len(u.Values) == 0 {
		return nil
	}
	var out []plot.Tick
	for _, t := range (ticks{}).Ticks(0, u.Values[len(u.Values)-1]) {
		if x := u.at(t.Value); x <= limit {
			out = append(out, plot.Tick{Value: x, Label: shortNumber(t.Value)})
		}
	}
	return out
}

// at is the x at which the scale has a value.
func (u *Upper) at(value float64) float64 {
	x0, v0 := 0.0, 0.0
	for i, v := range u.Values {
		if value <= v {
			if v == v0 {
				return u.X[i]
			}
			return x0 + (u.X[i]-x0)*(value-v0)/(v-v0)
		}
		x0, v0 = u.X[i], v
	}
	return x0
}

// shortNumber formats a round number with a unit of a thousand, a million and so on.
func shortNumber(x float64) string {
	unit := ""
	for _, u := range []string{"k", "M", "B", "T"} {
		if math.Abs(x) < 1000 {
			break
		}
		x, unit = x/1000, u
	}
	return strconv.FormatFloat(x, 'g', 6, 64) + unit
}

// ticks are five to twelve round numbers, each labeled, all with as many decimals.
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
	decimals := 0
	const rounding = 1e-9 // of a step; it must not cost the tick at an end
	for i := math.Ceil(lo/step - rounding); i*step <= hi+rounding*step && len(out) < 20; i++ {
		if i == 0 {
			i = 0 // not −0
		}
		label := strconv.FormatFloat(i*step, 'g', 10, 64)
		if _, fraction, ok := strings.Cut(label, "."); ok && !strings.Contains(label, "e") {
			decimals = max(decimals, len(fraction))
		}
		out = append(out, plot.Tick{Value: i * step, Label: label})
	}
	for i := range out {
		if !strings.Contains(out[i].Label, "e") {
			out[i].Label = strconv.FormatFloat(out[i].Value, 'f', decimals, 64)
		}
	}
	return out
}
