package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Print writes the report as tables.
func (r Report) Print(w io.Writer) error {
	kind := string(r.Device.Kind)
	if r.Device.API != "" {
		kind += ", " + r.Device.API
	}
	fmt.Fprintf(w, "%s  %s (%s) %s\n", r.Device.Name, r.Device.Adapter, kind, r.Device.Driver)
	fmt.Fprintf(w, "%s  gpupipe %s, %s, %s, %d CPUs\n\n", r.Time.Format("2006-01-02 15:04"), r.Version, r.Go, r.Platform, r.CPUs)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.Results) > 0 {
		fmt.Fprintln(t, "case\ttime\tGFLOP/s\tGB/s\tgonum GFLOP/s\tratio\tkernels")
	}
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, duration(x.Micros), number(x.GFLOPS), number(x.GBps),
			number(x.Gonum), number(x.Ratio), strings.Join(slices.Compact(slices.Sorted(slices.Values(x.Kernels))), " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range r.Steps {
		if err := s.print(w); err != nil {
			return err
		}
	}
	return nil
}

// shown is how many kernels of a step the table names.
const shown = 25

func (s Step) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %d parameters, %d tokens, %s, %.0f tokens/s, %s GFLOP/s; kernels alone %s\n\n", s.Name, s.Parameters, s.Tokens,
		duration(s.Micros), s.TokensPerSec, number(s.GFLOPS), duration(s.KernelMicros))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "share\ttime\tcount\tGFLOP/s\tGB/s\tcandidate\tkernel")
	for i, k := range s.Kernels {
		if i == shown {
			var rest Kernel
			for _, k := range s.Kernels[i:] {
				rest.Micros, rest.Share, rest.Count = rest.Micros+k.Micros, rest.Share+k.Share, rest.Count+k.Count
			}
			fmt.Fprintf(t, "%.1f %%\t%s\t%d\t\t\t\t(%d smaller)\n", 100*rest.Share, duration(rest.Micros), rest.Count, len(s.Kernels)-i)
			break
		}
		fmt.Fprintf(t, "%.1f %%\t%s\t%d\t%s\t%s\t%s\t%s\n", 100*k.Share, duration(k.Micros), k.Count, number(k.GFLOPS), number(k.GBps), k.Candidate, shortened(k.Label))
	}
	return t.Flush()
}

func shortened(label string) string {
	if r := []rune(label); len(r) > 70 {
		return string(r[:69]) + "…"
	}
	return label
}

func duration(micros float64) string {
	switch {
	case micros >= 1e6:
		return fmt.Sprintf("%.3g s", micros/1e6)
	case micros >= 1e3:
		return fmt.Sprintf("%.3g ms", micros/1e3)
	}
	return fmt.Sprintf("%.3g µs", micros)
}

// number has three digits; zero is what was not measured.
func number(x float64) string {
	switch {
	case x == 0:
		return ""
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
