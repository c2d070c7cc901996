package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/bench"
	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/pipebench"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

type benchCommand struct {
	Device  []string `help:"Device to measure: cpu:0, webgpu:0, vulkan:0, null. Repeatable: the devices take turns." placeholder:"NAME" sep:"none"`
	Filter  string   `help:"Measure only cases that match this regular expression." placeholder:"REGEXP"`
	Profile string   `help:"Write a profile of the training steps, profile.html and profile.json, into this folder." placeholder:"DIR"`
	Quick   bool     `help:"Measure for a shorter time, less exactly."`
	Static  bool     `help:"Use the default kernels of the device, without timing their variants first."`
	JSON    bool     `help:"Print a JSON object."`
}

func (c *benchCommand) Help() string {
	return `Measures single kernels, matrix products compared with gonum's on the CPU, whole training steps with the share of each kernel, and
pipelines. "pipeline sleeping" and "pipeline staleness" run on devices that only wait. "pipeline devices" runs on two logical devices of
the adapter. For a software adapter it runs in a process of its own with LP_NUM_THREADS=1, so that each device computes on one thread; two
cores must be idle.

Kernels are timed with the device's clock if it has one ("gpu"), else with the host's, which includes the time of a dispatch ("host").
Dispatches, whole steps and pipelines are timed with the host's clock. "Of peak" is a kernel's share of the device's peak, measured in the
same run: c for computation in f32, m for memory bandwidth, whichever share is larger. Kernels that are faster than a peak, as their data are in
caches or units for matrices compute, have no share of it.

Several devices take turns, so that other load on the machine affects them equally, and are printed side by side, without pipelines.

Examples:
  gpupipe bench --filter matmul
  gpupipe bench --filter pipeline
  gpupipe bench --device webgpu:0 --device vulkan:0 --filter 'dispatch|step'
  gpupipe bench --filter step --profile profiles
  gpupipe bench --json > bench.json`
}

// benchReport is the --json output for one device.
type benchReport struct {
	bench.Report
	Pipelines []pipebench.Result `json:"pipelines,omitempty"`
}

// benchReports is the --json output for several devices.
type benchReports struct {
	Devices    []bench.Report     `json:"devices"`
	Comparison []bench.Comparison `json:"comparison"`
}

func (c *benchCommand) Run(a *app) error {
	o := bench.Options{Quick: c.Quick}
	if c.Filter != "" {
		var err error
		if o.Filter, err = regexp.Compile(c.Filter); err != nil {
			return usererror.Errorf("--filter: %w", err)
		}
	}
	if err := c.checkProfile(o); err != nil {
		return usererror.New(err)
	}
	devs, err := c.open(a)
	defer func() {
		for _, dev := range devs {
			dev.Close()
		}
	}()
	if err != nil {
		return usererror.New(err)
	}
	s := &status{app: a, silent: c.JSON}
	o.Progress = func(name string) { s.say("measuring %s", name) }
	save := func() error { return nil }
	if !c.Static {
		c := a.kernelChoices(s.timing)
		o.Tune, save = c, c.Save
	}
	rs, err := bench.Run(a.ctx, devs, o)
	var pipelines []pipebench.Result
	if err == nil && len(devs) == 1 {
		pipelines, err = c.pipelines(a, s, o, devs[0].Info())
	}
	s.clear()
	if err != nil {
		return err
	}
	if len(rs[0].Results)+len(rs[0].Steps)+len(pipelines) == 0 {
		return usererror.Errorf("--filter: no case matches %q", c.Filter)
	}
	if err := save(); err != nil {
		a.note("gpupipe: %v", err)
	}
	if err := c.print(a, rs, pipelines); err != nil {
		return err
	}
	return c.profile(a, rs)
}

// open opens the named devices, or the default one.
func (c *benchCommand) open(a *app) (devs []device.Device, err error) {
	names := c.Device
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		dev, err := a.openDevice(name)
		if err != nil {
			return devs, err
		}
		devs = append(devs, dev)
	}
	return devs, nil
}

// checkProfile checks, before anything is measured, that there will be a profile and that it can be written.
func (c *benchCommand) checkProfile(o bench.Options) error {
	if c.Profile == "" {
		return nil
	}
	if !o.WantsSteps() {
		return fmt.Errorf("--profile: no training step matches --filter %q", c.Filter)
	}
	if err := os.MkdirAll(c.Profile, 0o777); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	f, err := os.CreateTemp(c.Profile, ".gpupipe-") // an existing folder may be read-only
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// profile writes the profile of the training steps.
func (c *benchCommand) profile(a *app, rs []bench.Report) error {
	if c.Profile == "" {
		return nil
	}
	p := &profile.Profile{Title: "gpupipe bench", Time: rs[0].Time, Steps: 1}
	for _, r := range rs {
		for _, s := range r.Steps {
			p.Steps = s.Profiled
			p.Ranks = append(p.Ranks, s.Profile)
		}
	}
	page, err := train.WriteProfile(c.Profile, p)
	if err != nil {
		return usererror.New(err)
	}
	a.note("profile: %s", page)
	return nil
}

func (c *benchCommand) print(a *app, rs []bench.Report, pipelines []pipebench.Result) error {
	switch {
	case c.JSON && len(rs) == 1:
		return a.printJSON(benchReport{rs[0], pipelines})
	case c.JSON:
		return a.printJSON(benchReports{rs, bench.Compare(rs)})
	}
	for _, r := range rs {
		if err := r.Print(a.stdout, a.width()); err != nil {
			return usererror.New(err)
		}
		if len(rs) > 1 {
			a.printf("\n")
		}
	}
	if len(rs) > 1 {
		return usererror.New(bench.PrintComparison(a.stdout, rs))
	}
	return usererror.New(pipebench.Print(a.stdout, a.width(), pipelines))
}
