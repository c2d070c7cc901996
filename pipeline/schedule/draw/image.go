package draw

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"strings"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Measures of a picture, in points.
const (
	row     = 20.0
	gap     = 4.0
	margin  = 10.0
	left    = 62.0 // of the stages' names
	under   = 62.0 // of the axis, the legend and the caption
	minWide = 420.0
	maxWide = 3000.0
)

// Save draws into a file, SVG or PNG by its ending. An action's colour tells its kind, and its shade the batch, modulo 3.
func Save(path string, s *schedule.Schedule, r *schedule.Result) error {
	if len(r.Events) > maxEvents {
		return fmt.Errorf("%s: found %d actions to draw, expected at most %d: take fewer batches or microbatches", path, len(r.Events), maxEvents)
	}
	wide := min(maxWide, max(minWide, r.Makespan/unit(r)*26))
	w, h := vg.Length(left+wide+2*margin), vg.Length(float64(s.Stages)*(row+gap)+under+2*margin)
	var canvas vg.CanvasWriterTo
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".svg":
		canvas = vgsvg.NewWith(vgsvg.UseWH(w, h), vgsvg.EmbedFonts(false))
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(110))}
	default:
		return fmt.Errorf("%s: found ending %q, expected .svg or .png", path, ext)
	}
	p := picture{Canvas: draw.NewCanvas(canvas, w, h), schedule: s, result: r, wide: wide}
	p.draw()
	return atomicfile.Write(path, func(out io.Writer) error {
		_, err := canvas.WriteTo(out)
		return err
	})
}

type picture struct {
	draw.Canvas
	schedule *schedule.Schedule
	result   *schedule.Result
	wide     float64 // points of the makespan
}

func (p *picture) draw() {
	p.rect(0, 0, float64(p.Max.X), float64(p.Max.Y), color.White)
	for s := range p.schedule.Stages {
		p.text(margin, p.top(s)-row/2, fmt.Sprintf("stage %d", s), 10, color.Black, draw.XLeft)
		p.rect(margin+left, p.top(s)-row, p.wide, row, color.Gray{238})
	}
	var kinds []schedule.Kind
	for _, e := range p.result.Events {
		p.event(e)
		kinds = append(kinds, e.Action.Kind)
	}
	p.axis()
	p.legend(kinds)
}

// top is the upper edge of a stage's row; y grows upwards.
func (p *picture) top(stage int) float64 {
	return float64(p.Max.Y) - margin - float64(stage)*(row+gap)
}

// x is where a time is.
func (p *picture) x(time float64) float64 {
	if p.result.Makespan == 0 {
		return margin + left
	}
	return margin + left + time/p.result.Makespan*p.wide
}

func (p *picture) event(e schedule.Event) {
	x, w := p.x(e.Start), p.x(e.End)-p.x(e.Start)
	if w == 0 {
		return
	}
	fill := shade(e.Action.Kind, e.Action.Batch)
	p.rect(x, p.top(e.Stage)-row, w, row, fill)
	border := draw.LineStyle{Color: color.White, Width: vg.Points(0.5)}
	p.StrokeLine2(border, vg.Length(x+w), vg.Length(p.top(e.Stage)-row), vg.Length(x+w), vg.Length(p.top(e.Stage)))
	name := label(p.schedule, e)
	if size := min(9, 1.7*w/float64(len(name))); size >= 4 {
		p.text(x+w/2, p.top(e.Stage)-row/2, name, size, contrast(fill), draw.XCenter)
	}
}

// axis marks about ten round times.
func (p *picture) axis() {
	y := p.top(p.schedule.Stages-1) - row - gap
	step := math.Pow(10, math.Floor(math.Log10(p.result.Makespan/4)))
	if p.result.Makespan/step > 20 {
		step *= 5
	}
	for i := 0; p.result.Makespan > 0 && float64(i)*step <= p.result.Makespan*(1+1e-9); i++ {
		at := vg.Length(p.x(float64(i) * step))
		p.StrokeLine2(draw.LineStyle{Color: color.Gray{90}, Width: vg.Points(0.5)}, at, vg.Length(y), at, vg.Length(y-3))
		p.text(float64(at), y-9, fmt.Sprintf("%.4g", float64(i)*step), 8, color.Gray{90}, draw.XCenter)
	}
}

// kindNames is what the legend says.
var kindNames = [...]struct {
	kind schedule.Kind
	name string
}{{schedule.Forward, "forward"}, {schedule.Backward, "backward"}, {schedule.InputGrad, "input gradient"}, {schedule.WeightGrad, "weight gradient"},
	{schedule.Evaluate, "evaluate"}, {schedule.Update, "update"}}

func (p *picture) legend(kinds []schedule.Kind) {
	has := map[schedule.Kind]bool{}
	for _, k := range kinds {
		has[k] = true
	}
	x, y := margin+left, margin+20.0
	for _, k := range kindNames {
		if has[k.kind] {
			p.rect(x, y-4, 10, 8, shade(k.kind, 0))
			p.text(x+14, y, k.name, 9, color.Black, draw.XLeft)
			x += 26 + 5*float64(len(k.name))
		}
	}
	caption := fmt.Sprintf("%s, %d stages, %d microbatches a batch; waiting %.1f %%", p.schedule.Name, p.schedule.Stages, p.schedule.Microbatches, 100*p.result.Bubble)
	if p.result.Steady != nil {
		caption += fmt.Sprintf(", in the steady state %.1f %%", 100*max(0, p.result.Steady.Bubble))
	}
	p.text(margin+left, margin+4, caption, 9, color.Gray{60}, draw.XLeft)
}

func (p *picture) rect(x, y, w, h float64, c color.Color) {
	at := func(x, y float64) vg.Point { return vg.Point{X: vg.Length(x), Y: vg.Length(y)} }
	p.FillPolygon(c, []vg.Point{at(x, y), at(x+w, y), at(x+w, y+h), at(x, y+h)})
}

func (p *picture) text(x, y float64, text string, size float64, c color.Color, align draw.XAlignment) {
	f := font.From(plot.DefaultFont, vg.Length(size))
	f.Variant = "Sans"
	p.FillText(draw.TextStyle{Color: c, Font: f, XAlign: align, YAlign: draw.YCenter, Handler: plot.DefaultTextHandler}, vg.Point{X: vg.Length(x), Y: vg.Length(y)}, text)
}

// shade is a kind's colour (Okabe and Ito's, legible to the colour-blind), lighter for two batches of three.
func shade(kind schedule.Kind, batch int) color.NRGBA {
	base := map[schedule.Kind]color.NRGBA{schedule.Forward: {0, 114, 178, 255}, schedule.Backward: {213, 94, 0, 255}, schedule.InputGrad: {230, 159, 0, 255},
		schedule.WeightGrad: {0, 158, 115, 255}, schedule.Evaluate: {86, 180, 233, 255}, schedule.Update: {70, 70, 70, 255}}[kind]
	light := []float64{0, 0.3, 0.6}[batch%3]
	mix := func(c uint8) uint8 { return uint8(math.Round(float64(c) + (255-float64(c))*light)) }
	return color.NRGBA{mix(base.R), mix(base.G), mix(base.B), 255}
}

// contrast is black or white, whichever is better seen on a colour.
func contrast(c color.NRGBA) color.Color {
	if 0.299*float64(c.R)+0.587*float64(c.G)+0.114*float64(c.B) > 140 {
		return color.Black
	}
	return color.White
}
