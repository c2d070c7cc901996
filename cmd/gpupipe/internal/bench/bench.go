// Package bench measures what training consists of on devices: single kernels, a whole training step, and each kernel's
// share of it, with matrix products beside gonum's on the host. Devices are measured in alternation, so that their
// ratios are meaningful on a busy machine.
package bench

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// Options of Run.
type Options struct {
	Filter   *regexp.Regexp    // selects cases by name; nil: all
	Tune     exec.Chooser      // chooses kernels; nil: the static choice
	Quick    bool              // shorter and less exact
	Progress func(name string) // called before each case; may be nil
}

// Report is the measurements of one device.
type Report struct {
	Device   device.Info   `json:"device"`
	Limits   target.Limits `json:"limits"`
	Time     time.Time     `json:"time"`
	Version  string        `json:"version"` // gpupipe's
	Go       string        `json:"go"`
	Platform string        `json:"platform"`
	CPUs     int           `json:"cpus"`
	Peak     profile.Peak  `json:"peak"` // as measured in this run
	Results  []Result      `json:"results"`
	Steps    []Step        `json:"steps,omitempty"`
}

// Result is the time of one case: the median over several batches of runs.
type Result struct {
	Name           string   `json:"name"`
	DurationMicros float64  `json:"micros"`
	Clock          string   `json:"clock"`                  // "gpu": the device's clock, kernels only; "host": the host's clock, with the gaps between kernels
	GFLOPS         float64  `json:"gflops,omitempty"`       // 1e9 multiplications and additions per second
	GBps           float64  `json:"gb_per_s,omitempty"`     // 1e9 bytes per second that must be read and written
	OfPeak         float64  `json:"of_peak,omitempty"`      // the larger of its shares of the two peaks
	Bound          string   `json:"bound,omitempty"`        // the peak of that share: "compute" or "memory"
	Gonum          float64  `json:"gonum_gflops,omitempty"` // the best of blas32.Gemm on the host, between the devices' batches
	Ratio          float64  `json:"ratio_to_gonum,omitempty"`
	Kernels        []string `json:"kernels,omitempty"` // the chosen variants
}

// Run measures every case and then whole training steps, and returns a report per device. It stops between measurements
// when ctx ends.
func Run(ctx context.Context, devs []device.Device, o Options) ([]Report, error) {
	rs := make([]Report, len(devs))
	for i, dev := range devs {
		rs[i] = Report{Device: dev.Info(), Limits: dev.Limits(), Time: time.Now(), Version: version.String(), Go: runtime.Version(),
			Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0)}
	}
	cases, err := Cases()
	if err != nil {
		return rs, err
	}
	b := &benchmark{ctx: ctx, devs: devs, o: o, reports: rs}
	for _, c := range cases {
		b.do(c.Name, func() error { return b.results(measure(devs, c, o)) })
	}
	b.do(dispatchCase, func() error {
		all, err := measureDispatch(devs, o)
		for i, r := range all {
			rs[i].Results = append(rs[i].Results, r...)
		}
		return err
	})
	for _, optimizer := range optimizers() {
		b.do(stepName(optimizer), func() error {
			steps, err := measureStep(devs, optimizer, b.peaks, o)
			for i, s := range steps {
				rs[i].Steps = append(rs[i].Steps, s)
			}
			return err
		})
	}
	return rs, b.err
}

// benchmark is a Run in progress.
type benchmark struct {
	ctx     context.Context
	devs    []device.Device
	o       Options
	reports []Report
	peaks   []profile.Peak // measured when first needed
	err     error          // the first
}

// do measures the cases that the filter selects, unless there was an error before.
func (b *benchmark) do(name string, f func() error) {
	if b.err == nil {
		b.err = b.ctx.Err()
	}
	if b.err != nil || !b.o.wants(name) {
		return
	}
	if b.peaks == nil && name != dispatchCase {
		b.o.report(peakCase)
		if b.peaks, b.err = peaks(b.devs, b.o); b.err != nil {
			b.err = fmt.Errorf("%s: %w", peakCase, b.err)
			return
		}
		for i, p := range b.peaks {
			b.reports[i].Peak = p
		}
	}
	b.o.report(name)
	if err := f(); err != nil {
		b.err = fmt.Errorf("%s: %w", name, err)
	}
}

// results records a case's results, one per device.
func (b *benchmark) results(rs []Result, err error) error {
	for i, r := range rs {
		r.OfPeak, r.Bound = b.peaks[i].Share(r.GFLOPS, r.GBps)
		b.reports[i].Results = append(b.reports[i].Results, r)
	}
	return err
}

func (o Options) report(name string) {
	if o.Progress != nil {
		o.Progress(name)
	}
}

func (o Options) wants(name string) bool {
	return o.Filter == nil || o.Filter.MatchString(name)
}

// WantsSteps reports whether the filter selects a whole step.
func (o Options) WantsSteps() bool {
	return slices.ContainsFunc(optimizers(), func(name string) bool { return o.wants(stepName(name)) })
}

// optimizers are the optimizers of the whole steps.
func optimizers() []string { return []string{"adamw", "muon"} }

// batch is the target duration of a batch of runs, and batches the number of batches.
func (o Options) batch() (d time.Duration, batches int) {
	if o.Quick {
		return 20 * time.Millisecond, 3
	}
	return 150 * time.Millisecond, 7
}
