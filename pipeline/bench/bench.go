// Package bench measures pipelines: how much of the time their stages compute, and what several devices gain over one. Devices
// that only sleep show what schedule and host make of any number of stages; devices that compute show what is left of that.
package bench

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
	Quick  bool           // shorter, and less exact
	// Sleeper makes a device that computes nothing and takes its time; nil: the cases that need it are left out.
	Sleeper func(latency func(program string) time.Duration) device.Device
	// Open makes one more logical device of the adapter to measure; nil: the cases that need it are left out.
	Open     func() (device.Device, error)
	Execute  engine.Executor                  // on devices of Open; nil: runtime/exec with the static choice of kernels
	Progress func(format string, args ...any) // told before each measurement, if not nil
}

// Result is one case.
type Result struct {
	Name     string    `json:"name"`
	About    string    `json:"about"`
	Measures []Measure `json:"measures"`
}

// Measure is a number, and where it should lie.
type Measure struct {
	What    string   `json:"what"`
	Value   float64  `json:"value"`
	Unit    string   `json:"unit,omitempty"` // %, s; or none, of a ratio
	AtLeast *float64 `json:"at_least,omitempty"`
	AtMost  *float64 `json:"at_most,omitempty"`
}

// Met tells whether the number lies where it should.
func (m Measure) Met() bool {
	return (m.AtLeast == nil || m.Value >= *m.AtLeast) && (m.AtMost == nil || m.Value <= *m.AtMost)
}

// The names of the cases.
const (
	SleepingCase = "pipeline sleeping"
	DevicesCase  = "pipeline devices"
)

// Run measures every case. It stops between measurements when ctx ends.
func Run(ctx context.Context, o Options) (results []Result, err error) {
	for _, c := range []struct {
		name string
		can  bool
		run  func(context.Context, Options) (Result, error)
	}{{SleepingCase, o.Sleeper != nil, sleeping}, {DevicesCase, o.Open != nil, devices}} {
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

// Wants tells whether the filter lets a case through.
func (o Options) Wants(name string) bool { return o.Filter == nil || o.Filter.MatchString(name) }

func (r *Result) add(m Measure) { r.Measures = append(r.Measures, m) }

func bound(x float64) *float64 { return &x }

// within are bounds on both sides, by a part of the value.
func (m Measure) within(part, of float64) Measure {
	m.AtLeast, m.AtMost = bound(of*(1-part)), bound(of*(1+part))
	return m
}
