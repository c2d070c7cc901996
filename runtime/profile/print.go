package profile

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpupipe/gpupipe/internal/table"
)

// Print writes the profile as tables for a terminal of a width; 0 stands for any width.
func (p *Profile) Print(w io.Writer, width int) error {
	for _, l := range p.Ranks {
		if err := l.print(w, p.Steps, width); err != nil {
			return err
		}
	}
	return nil
}

const (
	shown      = 25 // kernels in the table
	labelWidth = 70 // columns
)

func (l Rank) print(w io.Writer, steps, width int) error {
	fmt.Fprintf(w, "\n%s\n", table.Prose(fmt.Sprintf("%s on %s: %s", l.Name, l.Device.Name, l.Device.Hardware()), width))
	fmt.Fprintf(w, "%s a step on the device's clock\n", Duration(l.DurationMicros/float64(max(1, steps))))
	if l.Peak != (Peak{}) {
		fmt.Fprintf(w, "peak, as measured: %s GFLOP/s, %s GB/s\n", Number(l.Peak.GFLOPS), Number(l.Peak.GBps))
	}
	for _, group := range []struct {
		title string
		sums  []Sum
	}{{"PROGRAM", l.Programs}, {"PHASE", l.Phases}} {
		rows := [][]string{{}, {group.title, "SHARE", "TIME", "CALLS"}}
		for _, s := range group.sums {
			rows = append(rows, []string{s.Name, percentage(s.Share), Duration(s.DurationMicros), count(s.Calls)})
		}
		if err := table.Write(w, rows); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	return PrintKernels(w, l.Alike(), width)
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// PrintKernels writes kernels as a table. If the table is wider than width columns, it omits the less important
// columns and cuts the names of the kernels. 0 stands for any width.
func PrintKernels(w io.Writer, ks []Kernel, width int) error {
	rows := [][]string{{"SHARE", "TIME", "CALLS", "GFLOP/s", "GB/s", "OF PEAK", "VARIANT", "KERNEL"}}
	for i, k := range ks {
		if i == shown {
			var rest Kernel
			for _, k := range ks[i:] {
				rest.DurationMicros, rest.Share, rest.Calls = rest.DurationMicros+k.DurationMicros, rest.Share+k.Share, rest.Calls+k.Calls
			}
			rows = append(rows, []string{percentage(rest.Share), Duration(rest.DurationMicros), count(rest.Calls), "", "", "", "",
				fmt.Sprintf("(%d smaller)", len(ks)-i)})
			break
		}
		rows = append(rows, []string{percentage(k.Share), Duration(k.DurationMicros), count(k.Calls), Number(k.GFLOPS), Number(k.GBps),
			Percent(k.OfPeak, k.Bound), k.Candidate, table.Truncate(k.Label, labelWidth)})
	}
	return table.Write(w, table.Narrow(rows, width, 0, 1, 3, 5, 7))
}

func percentage(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// Percent returns a share of a peak with the first letter of the peak; "" for zero.
func Percent(of float64, bound string) string {
	if of == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %% %s", 100*of, bound[:1])
}

// Duration formats microseconds with three digits.
func Duration(durationMicros float64) string {
	switch {
	case durationMicros >= 1e6:
		return fmt.Sprintf("%.3g s", durationMicros/1e6)
	case durationMicros >= 1e3:
		return strings.Replace(fmt.Sprintf("%.3g ms", durationMicros/1e3), "1e+03", "1000", 1)
	}
	return strings.Replace(fmt.Sprintf("%.3g µs", durationMicros), "1e+03", "1000", 1)
}

// Number formats three digits; "" for zero, which means not measured.
func Number(x float64) string {
	switch {
	case x == 0:
		return ""
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
