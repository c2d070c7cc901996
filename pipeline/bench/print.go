package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes results as tables.
func Print(w io.Writer, results []Result) error {
	for _, r := range results {
		fmt.Fprintf(w, "%s: %s\n\n", r.Name, r.About)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, m := range r.Measures {
			fmt.Fprintf(t, "%s\t%s\t%s\n", m.What, m.text(m.Value), m.expectation())
		}
		fmt.Fprintln(t)
		if err := t.Flush(); err != nil {
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
