package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// Print writes the report as tables.
func (r Report) Print(w io.Writer) error {
	kind := string(r.Device.Kind)
	if r.Device.API != "" {
		kind += ", " + r.Device.API
	}
	fmt.Fprintf(w, "%s  %s (%s) %s\n", r.Device.Name, r.Device.Adapter, kind, r.Device.Driver)
	fmt.Fprintf(w, "%s  gpupipe %s, %s, %s, %d CPUs\n\n", r.Time.Format("2006-01-02 15:04"), r.Version, r.Go, r.Platform, r.CPUs)
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
	if err := table.Write(w, rows); err != nil {
		return err
	}
	for _, s := range r.Steps {
		if err := s.print(w); err != nil {
			return err
		}
	}
	return nil
}

func (s Step) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %d parameters, %d tokens, %s, %.0f tokens/s, %s GFLOP/s", s.Name, s.Parameters, s.Tokens,
		profile.Duration(s.DurationMicros), s.TokensPerSec, profile.Number(s.GFLOPS))
	if s.OfPeak > 0 {
		fmt.Fprintf(w, " (%.0f %% of the peak)", 100*s.OfPeak)
	}
	fmt.Fprintf(w, "; its kernels take %s on the %s's clock; %d times:\n\n", profile.Duration(s.KernelDurationMicros), map[string]string{GPU: "device", Host: "host"}[s.Clock], s.Profiled)
	return profile.PrintKernels(w, s.Profile.Alike())
}
