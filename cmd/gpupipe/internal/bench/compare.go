package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// Comparison is one case on several devices that were measured in alternation.
type Comparison struct {
	Name           string    `json:"name"`
	Clock          string    `json:"clock"`  // "gpu and host" if the devices differ
	DurationMicros []float64 `json:"micros"` // by device
	Ratios         []float64 `json:"ratios"` // to the first device's time; below 1 is faster
}

// Compare compares reports of one Run: cases, dispatches, whole steps, and the kernels of a step alone.
func Compare(rs []Report) (out []Comparison) {
	add := func(name string, of func(r Report) (durationMicros float64, clock string)) {
		c := Comparison{Name: name}
		var clocks []string
		for _, r := range rs {
			t, clock := of(r)
			c.DurationMicros, clocks = append(c.DurationMicros, t), append(clocks, clock)
			ratio := 0.0
			if c.DurationMicros[0] > 0 {
				ratio = t / c.DurationMicros[0]
			}
			c.Ratios = append(c.Ratios, ratio)
		}
		c.Clock = strings.Join(slices.Compact(slices.Sorted(slices.Values(clocks))), " and ")
		out = append(out, c)
	}
	for i, x := range rs[0].Results {
		add(x.Name, func(r Report) (float64, string) { return r.Results[i].DurationMicros, r.Results[i].Clock })
	}
	for i, x := range rs[0].Steps {
		add(x.Name, func(r Report) (float64, string) { return r.Steps[i].DurationMicros, Host })
		add(x.Name+", kernels", func(r Report) (float64, string) {
			return r.Steps[i].KernelDurationMicros, r.Steps[i].Clock
		})
	}
	return out
}

// PrintComparison prints reports of one Run side by side.
func PrintComparison(w io.Writer, rs []Report) error {
	header := []string{"CASE", "CLOCK", rs[0].Device.Name}
	for _, r := range rs[1:] {
		header = append(header, r.Device.Name, "to "+rs[0].Device.Name)
	}
	rows := [][]string{header}
	for _, c := range Compare(rs) {
		row := []string{c.Name, c.Clock, profile.Duration(c.DurationMicros[0])}
		for i, m := range c.DurationMicros[1:] {
			row = append(row, profile.Duration(m), fmt.Sprintf("%.2f", c.Ratios[i+1]))
		}
		rows = append(rows, row)
	}
	return table.Write(w, rows)
}
