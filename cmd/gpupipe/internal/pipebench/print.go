package pipebench

import (
	"fmt"
	"io"

	"github.com/gpupipe/gpupipe/internal/table"
)

// Print writes results as tables.
func Print(w io.Writer, width int, results []Result) error {
	for _, r := range results {
		fmt.Fprintf(w, "%s\n\n", table.Prose(r.Name+": "+r.About, width))
		var rows [][]string
		for _, m := range r.Measures {
			rows = append(rows, []string{m.What, m.text(m.Value), m.expectation()})
		}
		if err := table.Write(w, append(rows, []string{})); err != nil {
			return err
		}
	}
	return nil
}

func (m Measure) text(x float64) string {
	switch m.Unit {
	case "%":
		return fmt.Sprintf("%.1f %%", x)
	case "s":
		return fmt.Sprintf("%.4f s", x)
	}
	return fmt.Sprintf("%.3f", x)
}

// expectation is where the number should lie, and whether it does.
func (m Measure) expectation() string {
	var s string
	switch {
	case m.AtLeast != nil && m.AtMost != nil:
		s = m.text(*m.AtLeast) + " to " + m.text(*m.AtMost)
	case m.AtLeast != nil:
		s = "at least " + m.text(*m.AtLeast)
	case m.AtMost != nil:
		s = "at most " + m.text(*m.AtMost)
	default:
		return ""
	}
	if !m.Met() {
		return "MISSED: " + s
	}
	return s
}
