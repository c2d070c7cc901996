package profile

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed profile.html
var page string

// HTML writes the profile as one self-contained page: tables that sort and filter, and a chart of the layers.
func (p *Profile) HTML(w io.Writer) error {
	t, err := template.New("profile").Funcs(template.FuncMap{
		"duration": Duration,
		"number":   Number,
		"percent":  func(x float64) string { return fmt.Sprintf("%.1f%%", 100*x) },
		"step":     func(durationMicros float64) float64 { return durationMicros / float64(max(1, p.Steps)) },
		"each":     func(k Kernel) float64 { return share(k.DurationMicros, float64(k.Calls)) },
		"part":     share,
		"most": func(ks []Kernel) (most float64) { // the longest bar
			for _, k := range ks {
				most = max(most, k.Share)
			}
			return most
		},
		"alike": Rank.Alike,
		"chart": func(l Rank) chart { return newChart(l, p.Steps) },
		"dict":  func(a string, av any, b string, bv any) map[string]any { return map[string]any{a: av, b: bv} },
	}).Parse(page)
	if err != nil {
		panic(err) // the embedded page is malformed
	}
	return t.Execute(w, p)
}

// chart has a row per layer, with a bar for each phase.
type chart struct {
	Width, Height float64
	Rows          []chartRow
}

type chartRow struct {
	Name, Time string
	Text, End  float64
	Bars       []bar
}

type bar struct {
	Phase, Title        string
	X, Y, Width, Height float64
}

func newChart(l Rank, steps int) chart {
	const width, names, times, row, height = 1200.0, 130.0, 90.0, 24.0, 16.0
	c := chart{Width: width, Height: row * float64(len(l.Layers))}
	longest := 0.0
	for _, layer := range l.Layers {
		longest = max(longest, layer.DurationMicros)
	}
	for i, layer := range l.Layers {
		y := row * float64(i)
		r := chartRow{Name: layer.Name, Time: Duration(layer.DurationMicros / float64(max(1, steps))), Text: y + 13}
		if r.Name == "" {
			r.Name = "(no scope)"
		}
		x := names
		for _, p := range layer.Phases {
			w := share(p.DurationMicros, longest) * (width - names - times)
			r.Bars = append(r.Bars, bar{Phase: p.Name, X: x, Y: y, Width: w, Height: height,
				Title: fmt.Sprintf("%s %s: %s a step, %.1f %% of the layer", layer.Name, p.Name,
					Duration(p.DurationMicros/float64(max(1, steps))), 100*p.Share)})
			x += w
		}
		r.End = x + 8
		c.Rows = append(c.Rows, r)
	}
	return c
}
