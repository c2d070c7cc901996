package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// Print writes the report as tables for a terminal of a width; 0 stands for any width.
func (r Report) Print(w io.Writer, width int) error {
	kind := string(r.Device.Kind)
	if r.Device.API != "" {
		kind += ", " + r.Device.API
	}
	heading := fmt.Sprintf("%s  %s (%s) %s\n%s  gpupipe %s, %s, %s, %d CPUs", r.Device.Name, r.Device.Hardware(), kind, r.Device.Driver,
		r.Time.Format("2006-01-02 15:04"), r.Version, r.Go, r.Platform, r.CPUs)
	fmt.Fprintf(w, "%s\n\n", table.Prose(heading, width))
	if r.Peak != (profile.Peak{}) {
		fmt.Fprintf(w, "peak, as measured in this run: %s GFLOP/s, %s GB/s\n\n", profile.Number(r.Peak.GFLOPS), profile.Number(r.Peak.GBps))
	}
	var rows [][]string
	if len(r.Results) > 0 {
		rows = append(rows, []string{"CASE", "TIME", "CLOCK", "GFLOP/s", "GB/s", "OF PEAK", "GONUM GFLOP/s", "RATIO", "KERNELS"})
	}
	for _, x := range r.Results {
		rows = append(rows, []string{x.Name, profile.Duration(x.DurationMicros), x.Clock, profile.Number(x.GFLOPS), profile.Number(x.GBps),
			profile.Percent(x.OfPeak, x.Bound), profile.Number(x.Gonum), profile.Number(x.Ratio),
			strings.Join(slices.Compact(slices.Sorted(slices.Values(x.Kernels))), " ")})
	}
	if err := table.Write(w, table.Narrow(rows, width, 0, 1, 3, 4, 5)); err != nil {
		return err
	}
	for _, s := range r.Steps {
		if err := s.print(w, width); err != nil {
			return err
		}
	}
	return nil
}

func (s Step) print(w io.Writer, width int) error {
	text := fmt.Sprintf("%s: %d parameters, %d tokens, %s, %.0f tokens/s, %s GFLOP/s", s.Name, s.Parameters, s.Tokens,
		profile.Duration(s.DurationMicros), s.TokensPerSec, profile.Number(s.GFLOPS))
	if s.OfPeak > 0 {
		text += fmt.Sprintf(" (%.0f %% of the peak)", 100*s.OfPeak)
	}
	text += fmt.Sprintf("; its kernels take %s on the %s's clock; %d times:", profile.Duration(s.KernelDurationMicros),
		map[string]string{GPU: "device", Host: "host"}[s.Clock], s.Profiled)
	fmt.Fprintf(w, "\n%s\n\n", table.Prose(text, width))
	return profile.PrintKernels(w, s.Profile.Alike(), width)
}
