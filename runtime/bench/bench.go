// Package bench times on a device what training is made of: kernels alone, a whole training step, and each kernel's
// share of it; matrix products beside gonum's on the host.
package bench

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Options of Run.
type Options struct {
	Filter   *regexp.Regexp    // of the cases' names; nil: all
	Tune     exec.Chooser      // chooses kernels; nil: the static choice
	Quick    bool              // shorter, and less exact
	Progress func(name string) // told before each case, if not nil
}

// Report is what was measured.
type Report struct {
	Device   device.Info   `json:"device"`
	Limits   device.Limits `json:"limits"`
	Time     time.Time     `json:"time"`
	Version  string        `json:"version"` // gpupipe's
	Go       string        `json:"go"`
	Platform string        `json:"platform"`
	CPUs     int           `json:"cpus"`
	Results  []Result      `json:"results"`
	Steps    []Step        `json:"steps,omitempty"`
}

// Result is the time of one case: the best of several batches of runs, each ended by waiting for the device.
type Result struct {
	Name    string   `json:"name"`
	Micros  float64  `json:"micros"`
	GFLOPS  float64  `json:"gflops,omitempty"`       // 1e9 multiplications and additions a second
	GBps    float64  `json:"gb_per_s,omitempty"`     // 1e9 bytes a second that must be read and written at least
	Gonum   float64  `json:"gonum_gflops,omitempty"` // of blas32.Gemm on the host, between the device's batches
	Ratio   float64  `json:"ratio_to_gonum,omitempty"`
	Kernels []string `json:"kernels,omitempty"` // the chosen candidates
}

// Run measures every case, then whole training steps. It stops between measurements when ctx ends.
func Run(ctx context.Context, dev device.Device, o Options) (Report, error) {
	r := Report{Device: dev.Info(), Limits: dev.Limits(), Time: time.Now(), Version: version(), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0)}
	cases, err := Cases()
	if err != nil {
		return r, err
	}
	for _, c := range cases {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		if !o.wants(c.Name) {
			continue
		}
		res, err := measure(dev, c, o)
		if err != nil {
			return r, fmt.Errorf("%s: %w", c.Name, err)
		}
		r.Results = append(r.Results, res)
	}
	if o.wants(dispatchCase) {
		rs, err := measureDispatch(dev, o)
		if err != nil {
			return r, fmt.Errorf("%s: %w", dispatchCase, err)
		}
		r.Results = append(r.Results, rs...)
	}
	for _, optimizer := range []string{"adamw", "muon"} {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		name := stepName(optimizer)
		if !o.wants(name) {
			continue
		}
		s, err := measureStep(dev, optimizer, o)
		if err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
		r.Steps = append(r.Steps, s)
	}
	return r, nil
}

func (o Options) wants(name string) bool {
	if o.Filter != nil && !o.Filter.MatchString(name) {
		return false
	}
	if o.Progress != nil {
		o.Progress(name)
	}
	return true
}

// batch is how long a batch of runs should take, and batches how many there are.
func (o Options) batch() (d time.Duration, batches int) {
	if o.Quick {
		return 20 * time.Millisecond, 3
	}
	return 150 * time.Millisecond, 7
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v
}

// best repeats a piece of work until a batch is long enough to time, and returns the shortest time of one piece over
// the batches. between, if not nil, runs before each batch: measurements that take turns see the same machine.
func (o Options) best(work func(n int) error, between func() error) (time.Duration, error) {
	timed := func(n int) (time.Duration, error) {
		start := time.Now()
		err := work(n)
		return time.Since(start) / time.Duration(n), err
	}
	if _, err := timed(1); err != nil { // compiles, and fills caches
		return 0, err
	}
	once, err := timed(1)
	if err != nil {
		return 0, err
	}
	length, batches := o.batch()
	n := max(1, min(1000, int(length/max(once, time.Microsecond))))
	fastest := once
	for range batches {
		if between != nil {
			if err := between(); err != nil {
				return 0, err
			}
		}
		t, err := timed(n)
		if err != nil {
			return 0, err
		}
		fastest = min(fastest, t)
	}
	return fastest, nil
}
