package draw

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	imagefont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Measures of a picture, in pixels of a PNG and points of an SVG.
const (
	margin   = 16.0
	nameSize = 64.0 // the column of the stages' names
	row      = 26.0
	gap      = 3.0
	header   = 78.0 // title, figures and legend
	axis     = 30.0 // below each band
	cell     = 27.0 // the shortest action on a microbatch, unless there are more than maxBands bands
	maxBand  = 1120.0
	minBand  = 560.0
	maxBands = 12
)

// Save draws a schedule into a file, an SVG or a PNG by its extension. Time runs from left to right. A long schedule
// continues in further bands below, so that the picture is at most about 1200 pixels wide.
//
// The color of an action is its kind, its shade the batch modulo 3. Its label is the microbatch, with the chunk where a
// stage has several.
func Save(path string, s *schedule.Schedule, r *schedule.Result) error {
	if len(r.Events) > maxEvents {
		return fmt.Errorf("%s: found %d actions to draw, expected at most %d: choose fewer batches or microbatches", path, len(r.Events),
			maxEvents)
	}
	p := newPicture(s, r)
	w, h := p.size()
	return save(path, w, h, func(c draw.Canvas) {
		p.Canvas = c
		p.draw()
	})
}

// save draws a picture into a file.
func save(path string, w, h vg.Length, picture func(draw.Canvas)) error {
	var canvas vg.CanvasWriterTo
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".svg":
		canvas = vgsvg.NewWith(vgsvg.UseWH(w, h), vgsvg.EmbedFonts(false))
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(72))}
	default:
		return fmt.Errorf("%s: found extension %q, expected .svg or .png", path, ext)
	}
	picture(draw.NewCanvas(canvas, w, h))
	return atomicfile.Write(path, func(out io.Writer) error {
		_, err := canvas.WriteTo(out)
		return err
	})
}

// picture is a schedule's drawing in bands. Each band shows the next span of time.
type picture struct {
	draw.Canvas
	schedule *schedule.Schedule
	result   *schedule.Result
	bands    int
	span     float64 // time of a band
	scale    float64 // pixels per unit of time
}

// newPicture divides the makespan into as few bands as possible, of whole cells.
func newPicture(s *schedule.Schedule, r *schedule.Result) *picture {
	unit := unit(r)
	perBand := math.Floor(maxBand / cell) // cells
	cells := math.Max(1, math.Ceil(r.Makespan/unit-1e-9))
	bands := math.Ceil(cells / perBand)
	if bands > maxBands {
		bands = maxBands
	}
	perBand = math.Ceil(cells / bands)
	width := math.Max(minBand, math.Min(maxBand, perBand*cell))
	return &picture{schedule: s, result: r, bands: int(bands), span: perBand * unit, scale: width / (perBand * unit)}
}

func (p *picture) bandHeight() float64 { return float64(p.schedule.Stages)*(row+gap) + axis }

func (p *picture) size() (w, h vg.Length) {
	return vg.Length(2*margin + nameSize + p.span*p.scale), vg.Length(margin + header + float64(p.bands)*p.bandHeight())
}

func (p *picture) draw() {
	p.rect(0, 0, float64(p.Max.X), float64(p.Max.Y), color.White)
	for band := range p.bands {
		for s := range p.schedule.Stages {
			y := p.bottom(band, s)
			p.text(margin, y+row/2, fmt.Sprintf("stage %d", s), 13, color.Black, draw.XLeft)
			p.rect(margin+nameSize, y, p.length(band)*p.scale, row, idle)
		}
		p.axis(band)
	}
	for _, e := range p.result.Events {
		p.event(e)
	}
	for _, e := range p.result.Events {
		if e.Action.Kind == schedule.Update && e.Start == e.End {
			p.instant(e)
		}
	}
	p.head()
}

// bottom is the lower edge of a stage's row; y grows upwards.
func (p *picture) bottom(band, stage int) float64 {
	return float64(p.Max.Y) - margin - header - float64(band)*p.bandHeight() - float64(stage)*(row+gap) - row
}

// length is how much of a band's time the schedule takes.
func (p *picture) length(band int) float64 {
	return math.Min(p.span, p.result.Makespan-float64(band)*p.span)
}

// x is the place of a time in a band.
func (p *picture) x(band int, time float64) float64 {
	return margin + nameSize + (time-float64(band)*p.span)*p.scale
}

// event draws an action, in two bands if it crosses the end of one.
func (p *picture) event(e schedule.Event) {
	fill := shade(e.Action.Kind, e.Action.Batch)
	for band := range p.bands {
		start := math.Max(e.Start, float64(band)*p.span)
		end := math.Min(e.End, float64(band+1)*p.span)
		if end <= start {
			continue
		}
		x, y, w := p.x(band, start), p.bottom(band, e.Stage), (end-start)*p.scale
		p.rect(x, y, w, row, fill)
		p.line(color.White, 1, x+w, y, x+w, y+row)
		name := number(p.schedule, e)
		if size := math.Min(13, 1.6*(w-2)/float64(len(name))); size >= 7 {
			p.text(x+w/2, y+row/2, name, size, contrast(fill), draw.XCenter)
		}
	}
}

// instant draws an action that takes no time as a line.
func (p *picture) instant(e schedule.Event) {
	band := min(p.bands-1, int(e.Start/p.span))
	x, y := p.x(band, e.Start), p.bottom(band, e.Stage)
	p.line(shade(e.Action.Kind, 0), 3, x, y-1, x, y+row+1)
}

// axis marks about ten round times of a band.
func (p *picture) axis(band int) {
	y := p.bottom(band, p.schedule.Stages-1) - 4
	step := math.Pow(10, math.Floor(math.Log10(p.span/4)))
	for _, by := range []float64{2, 5} {
		if p.span/step > 20 {
			step *= by
		}
	}
	from := float64(band) * p.span
	p.text(margin, y-11, "time", 11, muted, draw.XLeft)
	for i := math.Max(0, math.Ceil(from/step-1e-9)); p.result.Makespan > 0 && i*step <= from+p.length(band)+1e-9*step; i++ {
		x := p.x(band, i*step)
		p.line(muted, 1, x, y, x, y-4)
		p.text(x, y-11, strconv.FormatFloat(i*step, 'g', 6, 64), 11, muted, draw.XCenter)
	}
}

// kindNames are the entries of the legend.
var kindNames = [...]struct {
	kind schedule.Kind
	name string
}{{schedule.Forward, "forward"}, {schedule.Backward, "backward"}, {schedule.InputGrad, "input gradient"},
	{schedule.WeightGrad, "weight gradient"}, {schedule.Evaluate, "evaluate"}, {schedule.Update, "update"}}

// head draws the title, the figures and the legend.
func (p *picture) head() {
	top := float64(p.Max.Y) - margin
	title := fmt.Sprintf("%s: %d stages, %d microbatches per batch", p.schedule.Name, p.schedule.Stages, p.schedule.Microbatches)
	if p.schedule.Depth > 0 {
		title += fmt.Sprintf(", depth %d", p.schedule.Depth)
	}
	p.bold(margin, top-8, title, 17)
	figures := fmt.Sprintf("Bubble %.1f %%", 100*p.result.Bubble)
	if p.result.Steady != nil {
		figures += fmt.Sprintf(", in the steady state %.1f %%", 100*max(0, p.result.Steady.Bubble))
	}
	numbers := "Numbers are microbatches."
	if p.schedule.Chunks > 1 {
		numbers = "Numbers are microbatch:chunk."
	}
	p.text(margin, top-31, figures+". "+numbers, 13, muted, draw.XLeft)
	p.legend(margin, top-56)
}

func (p *picture) legend(x, y float64) {
	has := map[schedule.Kind]bool{}
	batches := 0
	for _, e := range p.result.Events {
		has[e.Action.Kind] = true
		batches = max(batches, e.Action.Batch+1)
	}
	entry := func(name string, fills ...color.Color) {
		for _, fill := range fills {
			p.rect(x, y-6, 12, 12, fill)
			x += 13
		}
		x = p.text(x+5, y, name, 13, color.Black, draw.XLeft) + 18
	}
	for _, k := range kindNames {
		if has[k.kind] {
			entry(k.name, shade(k.kind, 0))
		}
	}
	entry("idle", idle)
	if batches > 1 {
		var shades []color.Color
		for b := range min(batches, 3) {
			shades = append(shades, shade(schedule.Forward, b))
		}
		entry("batches, dark to light, in turn", shades...)
	}
}

func (p *picture) rect(x, y, w, h float64, c color.Color) {
	at := func(x, y float64) vg.Point { return vg.Point{X: vg.Length(x), Y: vg.Length(y)} }
	p.FillPolygon(c, []vg.Point{at(x, y), at(x+w, y), at(x+w, y+h), at(x, y+h)})
}

func (p *picture) line(c color.Color, width, x0, y0, x1, y1 float64) {
	p.StrokeLine2(draw.LineStyle{Color: c, Width: vg.Length(width)}, vg.Length(x0), vg.Length(y0), vg.Length(x1), vg.Length(y1))
}

// text draws text centered on y and returns the x at its end.
func (p *picture) text(x, y float64, text string, size float64, c color.Color, align draw.XAlignment) (end float64) {
	return p.write(x, y, text, textStyle(size, c, align))
}

func (p *picture) bold(x, y float64, text string, size float64) {
	style := textStyle(size, color.Black, draw.XLeft)
	style.Font.Weight = imagefont.WeightBold
	p.write(x, y, text, style)
}

func (p *picture) write(x, y float64, text string, style draw.TextStyle) (end float64) {
	p.FillText(style, vg.Point{X: vg.Length(x), Y: vg.Length(y)}, text)
	return x + float64(style.Width(text))
}

func textStyle(size float64, c color.Color, align draw.XAlignment) draw.TextStyle {
	f := font.From(plot.DefaultFont, vg.Length(size))
	f.Variant = "Sans"
	return draw.TextStyle{Color: c, Font: f, XAlign: align, YAlign: draw.YCenter, Handler: plot.DefaultTextHandler}
}

var (
	idle  = color.NRGBA{236, 236, 236, 255}
	muted = color.NRGBA{90, 90, 90, 255}
)

// shade is the color of a kind, of the palette of Okabe and Ito, which is legible to the color-blind. It is lighter for
// two batches of three.
func shade(kind schedule.Kind, batch int) color.NRGBA {
	base := map[schedule.Kind]color.NRGBA{schedule.Forward: {0, 114, 178, 255}, schedule.Backward: {213, 94, 0, 255},
		schedule.InputGrad:  {230, 159, 0, 255},
		schedule.WeightGrad: {0, 158, 115, 255}, schedule.Evaluate: {86, 180, 233, 255}, schedule.Update: {40, 40, 40, 255}}[kind]
	light := []float64{0, 0.35, 0.65}[batch%3]
	mix := func(c uint8) uint8 { return uint8(math.Round(float64(c) + (255-float64(c))*light)) }
	return color.NRGBA{mix(base.R), mix(base.G), mix(base.B), 255}
}

// contrast is black or white, whichever is more legible on a color.
func contrast(c color.NRGBA) color.Color {
	if 0.299*float64(c.R)+0.587*float64(c.G)+0.114*float64(c.B) > 140 {
		return color.Black
	}
	return color.White
}
