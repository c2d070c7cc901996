// Package pipebench measures pipelines: the utilization of their stages, and the speedup of several devices over one.
// It trains a small model with package engine and summarizes the trace of the run. Devices that only sleep show the
// overhead of schedule and host for any number of stages; devices that compute show the speedup that remains on real
// hardware.
package pipebench

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options of Run.
type Options struct {
	Filter *regexp.Regexp // of the cases' names; nil: all
	Quick  bool           // shorter and less exact
	// Sleeper makes a device that computes nothing and sleeps instead; nil: Run omits the cases that need it.
	Sleeper func(latency func(program string) time.Duration) device.Device
	// Open makes one more logical device of the adapter to measure; nil: Run omits the cases that need it.
	Open     func() (device.Device, error)
	Execute  engine.Executor                  // on devices of Open; nil: runtime/exec with the static choice of kernels
	Progress func(format string, args ...any) // called before each measurement, if not nil
}

// Result is the result of one case.
type Result struct {
	Name     string    `json:"name"`
	About    string    `json:"about"`
	Measures []Measure `json:"measures"`
}

// Measure is a number and its expected range.
type Measure struct {
	What    string   `json:"what"`
	Value   float64  `json:"value"`
	Unit    string   `json:"unit,omitempty"` // %, s; empty for a ratio
	AtLeast *float64 `json:"at_least,omitempty"`
	AtMost  *float64 `json:"at_most,omitempty"`
}

// Met reports whether the number is in its expected range.
func (m Measure) Met() bool {
	return (m.AtLeast == nil || m.Value >= *m.AtLeast) && (m.AtMost == nil || m.Value <= *m.AtMost)
}

// The names of the cases.
const (
	SleepingCase  = "pipeline sleeping"
	HalvesCase    = "pipeline halves"
	StalenessCase = "pipeline staleness"
	DevicesCase   = "pipeline devices"
)

// Run measures every case that the filter selects. It stops between measurements when ctx ends.
func Run(ctx context.Context, o Options) (results []Result, err error) {
	for _, c := range []struct {
		name string
		can  bool
		run  func(context.Context, Options) (Result, error)
	}{{SleepingCase, o.Sleeper != nil, sleeping}, {HalvesCase, o.Sleeper != nil, halves}, {StalenessCase, o.Sleeper != nil, staleness},
		{DevicesCase, o.Open != nil, devices}} {
		if !c.can || !o.Wants(c.name) {
			continue
		}
		r, err := c.run(ctx, o)
		if err != nil {
			return results, fmt.Errorf("%s: %w", c.name, err)
		}
		r.Name = c.name
		results = append(results, r)
	}
	return results, nil
}

// Wants reports whether the filter selects a case.
func (o Options) Wants(name string) bool { return o.Filter == nil || o.Filter.MatchString(name) }

func (r *Result) add(m Measure) { r.Measures = append(r.Measures, m) }

func bound(x float64) *float64 { return &x }

// within bounds the number on both sides of a value, by a fraction of it.
func (m Measure) within(fraction, of float64) Measure {
	m.AtLeast, m.AtMost = bound(of*(1-fraction)), bound(of*(1+fraction))
	return m
}
