package profile

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the profile as tables.
func (p *Profile) Print(w io.Writer) error {
	for _, l := range p.Lines {
		if err := l.print(w, p.Steps); err != nil {
			return err
		}
	}
	return nil
}

// shown is how many kernels of a line the table names.
const shown = 25

func (l Line) print(w io.Writer, steps int) error {
	fmt.Fprintf(w, "\n%s on %s (%s): %s a step on the device's clock\n", l.Name, l.Device.Name, l.Device.Adapter, Duration(l.Micros/float64(max(1, steps))))
	if l.Peak != (Peak{}) {
		fmt.Fprintf(w, "peak, as measured: %s GFLOP/s, %s GB/s\n", Number(l.Peak.GFLOPS), Number(l.Peak.GBps))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, group := range []struct {
		title string
		sums  []Sum
	}{{"PROGRAM", l.Programs}, {"PHASE", l.Phases}} {
		fmt.Fprintf(t, "\n%s\tSHARE\tTIME\tCALLS\n", group.title)
		for _, s := range group.sums {
			fmt.Fprintf(t, "%s\t%.1f %%\t%s\t%s\n", s.Name, 100*s.Share, Duration(s.Micros), count(s.Calls))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	return PrintKernels(w, l.Alike())
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// PrintKernels writes kernels as a table.
func PrintKernels(w io.Writer, ks []Kernel) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SHARE\tTIME\tCALLS\tGFLOP/s\tGB/s\tOF PEAK\tCANDIDATE\tKERNEL")
	for i, k := range ks {
		if i == shown {
			var rest Kernel
			for _, k := range ks[i:] {
				rest.Micros, rest.Share, rest.Calls = rest.Micros+k.Micros, rest.Share+k.Share, rest.Calls+k.Calls
			}
			fmt.Fprintf(t, "%.1f %%\t%s\t%d\t\t\t\t\t(%d smaller)\n", 100*rest.Share, Duration(rest.Micros), rest.Calls, len(ks)-i)
			break
		}
		fmt.Fprintf(t, "%.1f %%\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", 100*k.Share, Duration(k.Micros), k.Calls, Number(k.GFLOPS), Number(k.GBps),
			Percent(k.OfPeak, k.Bound), k.Candidate, shortened(k.Label))
	}
	return t.Flush()
}

// Percent is a share of a peak, with the first letter of which; nothing for zero.
func Percent(of float64, bound string) string {
	if of == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %% %s", 100*of, bound[:1])
}

func shortened(label string) string {
	if r := []rune(label); len(r) > 70 {
		return string(r[:69]) + "…"
	}
	return label
}

// Duration writes microseconds with three digits.
func Duration(micros float64) string {
	switch {
	case micros >= 1e6:
		return fmt.Sprintf("%.3g s", micros/1e6)
	case micros >= 1e3:
		return strings.Replace(fmt.Sprintf("%.3g ms", micros/1e3), "1e+03", "1000", 1)
	}
	return strings.Replace(fmt.Sprintf("%.3g µs", micros), "1e+03", "1000", 1)
}

// Number has three digits; zero is what was not measured.
func Number(x float64) string {
	switch {
	case x == 0:
		return ""
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
