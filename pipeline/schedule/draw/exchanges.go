package draw

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// ExchangesText shows exchanges of replicas that train on their own, a column a step. The row of a replica has the
// fragments that are sent (S) and that land (L) after the step, and the step's waiting for them (w); the row below it,
// how much of the step its connection was busy. Lines have at most columns characters, or any number if that is 0.
func ExchangesText(r *schedule.ExchangeResult, columns int) string {
	rows := [][]string{{"step"}}
	steps := 0
	for i, one := range r.Replicas {
		if len(one.Ends) == 0 {
			continue
		}
		steps = len(one.Ends)
		moves, link := []string{fmt.Sprint("replica ", i)}, []string{"  link"}
		for s := 1; s <= steps; s++ {
			moves = append(moves, moved(r, i, s))
			from, to := 0., one.Ends[s-1]
			if s > 1 {
				from = one.Ends[s-2]
			}
			link = append(link, fmt.Sprintf("%.0f%%", 100*min(1, busy(r, i, from, to)/(to-from))))
		}
		rows = append(rows, moves, link)
	}
	for s := 1; s <= steps; s++ {
		rows[0] = append(rows[0], fmt.Sprint(s))
	}
	return blocks(rows, columns)
}

// moved describes what a replica does after a step.
func moved(r *schedule.ExchangeResult, replica, step int) string {
	var landed, sent []string
	waited := false
	for _, f := range r.Flights {
		if f.Step == step {
			sent = append(sent, fmt.Sprint(f.Fragment))
		}
		if f.Lands == step && f.Step > 0 {
			landed = append(landed, fmt.Sprint(f.Fragment))
			waited = waited || f.Arrived[replica] > r.Replicas[replica].Ends[step-1]*(1+rounding)
		}
	}
	var words []string
	if waited {
		words = append(words, "w")
	}
	for _, x := range []struct {
		mark      string
		fragments []string
	}{{"L", landed}, {"S", sent}} {
		if len(x.fragments) > 0 {
			words = append(words, x.mark+strings.Join(x.fragments, ","))
		}
	}
	if len(words) == 0 {
		return "·"
	}
	return strings.Join(words, " ")
}

const rounding = 1e-9

// busy is how long a replica's connection sends between two times.
func busy(r *schedule.ExchangeResult, replica int, from, to float64) (sum float64) {
	for _, f := range r.Flights {
		if f.Left[replica] > 0 {
			sum += max(0, min(to, f.Left[replica])-max(from, f.Leaves[replica]))
		}
	}
	return sum
}

// blocks writes a table, in blocks of as many columns as fit.
func blocks(rows [][]string, columns int) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for from := 1; from < len(widths); {
		to, used := from, widths[0]
		for to < len(widths) && (to == from || columns == 0 || used+2+widths[to] <= columns) {
			used += 2 + widths[to]
			to++
		}
		if from > 1 {
			b.WriteByte('\n')
		}
		for _, row := range rows {
			line := pad(row[0], widths[0])
			for i := from; i < to; i++ {
				line += "  " + pad(row[i], widths[i])
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		from = to
	}
	return b.String()
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", width-len([]rune(text)))
}

// SaveExchanges draws exchanges into a file, an SVG or a PNG by its extension, time from left to right. A replica has a
// row of its steps, with waiting in red, and one of its connection: a bar is a message that leaves, in the color of its
// fragment, and a tick of that color the landing of its exchange.
func SaveExchanges(path, title string, r *schedule.ExchangeResult) error {
	steps, trains := 0, []int{}
	for i, one := range r.Replicas {
		if len(one.Ends) > 0 {
			steps, trains = max(steps, len(one.Ends)), append(trains, i)
		}
	}
	if n := steps * len(trains); n > maxEvents {
		return fmt.Errorf("%s: found %d steps of replicas to draw, expected at most %d", path, n, maxEvents)
	}
	width := math.Max(minBand, math.Min(2*maxBand, float64(steps)*cell))
	p := &exchangePicture{picture: picture{scale: width / r.Makespan}, result: r}
	w := vg.Length(2*margin + replicaNames + width)
	h := vg.Length(margin + header + float64(len(trains))*(2*row+3*gap) + axis)
	return save(path, w, h, func(c draw.Canvas) {
		p.Canvas = c
		p.draw(title, trains)
	})
}

const replicaNames = 84.0 // the column of the replicas' names

// exchangePicture is a drawing of exchanges.
type exchangePicture struct {
	picture
	result *schedule.ExchangeResult
}

func (p *exchangePicture) at(time float64) float64 { return margin + replicaNames + time*p.scale }

func (p *exchangePicture) draw(title string, trains []int) {
	top := float64(p.Max.Y) - margin
	p.rect(0, 0, float64(p.Max.X), float64(p.Max.Y), color.White)
	p.bold(margin, top-8, title, 17)
	p.text(margin, top-31, "Upper rows: steps, waiting in red. Lower rows: messages that leave, a color for each", 13, muted, draw.XLeft)
	p.text(margin, top-49, "fragment, and a tick of that color where its exchange lands.", 13, muted, draw.XLeft)
	y := top - header
	for _, i := range trains {
		y -= row
		p.text(margin, y+row/2, fmt.Sprint("replica ", i), 13, color.Black, draw.XLeft)
		p.steps(i, y)
		y -= row + gap
		p.text(margin+14, y+row/2, "connection", 11, muted, draw.XLeft)
		p.connection(i, y)
		y -= 2 * gap
	}
	for i := range 11 {
		time := p.result.Makespan * float64(i) / 10
		p.line(muted, 1, p.at(time), y, p.at(time), y-4)
		p.text(p.at(time), y-11, fmt.Sprintf("%.4g", time), 11, muted, draw.XCenter)
	}
}

// steps draws the steps of a replica.
func (p *exchangePicture) steps(i int, y float64) {
	one := p.result.Replicas[i]
	p.rect(p.at(0), y, p.result.Makespan*p.scale, row, waiting)
	for s := 1; s <= len(one.Ends); s++ {
		from, to := one.Begins[s-1], one.Ends[s-1]
		fill := shade(schedule.Forward, s%2)
		p.rect(p.at(from), y, (to-from)*p.scale, row, fill)
		p.line(color.White, 1, p.at(to), y, p.at(to), y+row)
		if name := fmt.Sprint(s); (to-from)*p.scale > 7*float64(len(name)) {
			p.text(p.at((from+to)/2), y+row/2, name, 11, contrast(fill), draw.XCenter)
		}
	}
}

// connection draws what a replica sends, and where it lands.
func (p *exchangePicture) connection(i int, y float64) {
	p.rect(p.at(0), y, p.result.Makespan*p.scale, row, idle)
	for _, f := range p.result.Flights {
		fill := fragmentColor(f.Fragment)
		if from, to := f.Leaves[i], math.Min(f.Left[i], p.result.Makespan); to > from {
			p.rect(p.at(from), y, (to-from)*p.scale, row, fill)
		}
		if f.Landed[i] > 0 {
			p.line(fill, 3, p.at(f.Landed[i]), y-2, p.at(f.Landed[i]), y+row+2)
		}
	}
}

var waiting = color.NRGBA{204, 60, 60, 255}

// fragmentColor is a color of the palette of Okabe and Ito.
func fragmentColor(fragment int) color.NRGBA {
	all := []color.NRGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {230, 159, 0, 255}, {86, 180, 233, 255},
		{204, 121, 167, 255}, {120, 94, 0, 255}}
	return all[fragment%len(all)]
}

// Shown is the exchanges of few steps of a result, such that pictures are short: those up to a step.
func Shown(r *schedule.ExchangeResult, steps int) *schedule.ExchangeResult {
	out := *r
	out.Makespan, out.Replicas, out.Flights = 0, slices.Clone(r.Replicas), nil
	for i := range out.Replicas {
		one := &out.Replicas[i]
		if n := min(steps, len(one.Ends)); n > 0 {
			one.Ends, one.Begins = one.Ends[:n], one.Begins[:n]
			out.Makespan = max(out.Makespan, one.Ends[n-1])
		}
	}
	for _, f := range r.Flights {
		if f.Step <= steps {
			f.Landed = slices.Clone(f.Landed)
			for i, at := range f.Landed {
				if at > out.Makespan {
					f.Landed[i] = 0
				}
			}
			out.Flights = append(out.Flights, f)
		}
	}
	return &out
}
