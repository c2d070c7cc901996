// Package verify proves on a user's own devices what gpupipe promises of pipelines: the layout of a model over devices
// changes no bit of its weights, a run that was stopped and resumed equals one that never stopped, and a seed
// determines everything. It trains a tiny model many times, as gpupipe train does, and compares the checkpoints.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options select the devices to verify, and how thoroughly.
type Options struct {
	Devices    []string // as users name them: a stage each, in turn; none: the default device
	OpenDevice layout.OpenDevice
	OpenWorker train.OpenWorker                   // nil: no case has devices in processes of their own
	Quick      bool                               // fewer cases
	Batches    int                                // that each run trains; 0: 20, or 10 if quick
	Filter     string                             // only cases whose claim or name contains it
	Progress   func(done, total int, name string) // called before each case; may be nil
}

// Verdict is how a case ended.
type Verdict string

const (
	Equal   Verdict = "equal"   // to the last bit
	Close   Verdict = "close"   // within rounding, where no more is promised
	OK      Verdict = "ok"      // of a case that compares nothing
	Differs Verdict = "DIFFERS" // where it must not
	Failed  Verdict = "FAILED"
)

// Case is one thing that was verified.
type Case struct {
	Claim      string      `json:"claim"` // the promise that it tests
	Name       string      `json:"name"`
	Against    string      `json:"against,omitempty"` // the run that it is compared with
	Device     string      `json:"device,omitempty"`  // where there are several kinds
	Verdict    Verdict     `json:"verdict"`
	Detail     string      `json:"detail,omitempty"`
	Difference *Difference `json:"difference,omitempty"`
}

// OK reports whether the case passed.
func (c Case) OK() bool { return c.Verdict != Differs && c.Verdict != Failed }

// Report is all cases.
type Report struct {
	Devices []device.Info `json:"devices"`
	Mixed   bool          `json:"mixed"`   // the devices are of several kinds: together they are promised to agree within rounding only
	Batches int           `json:"batches"` // of a run
	OK      bool          `json:"ok"`
	Cases   []Case        `json:"cases"`
}

// Run verifies. It returns an error if it cannot verify at all; failed cases are in the report.
func Run(ctx context.Context, o Options) (r Report, err error) {
	if len(o.Devices) == 0 {
		o.Devices = []string{""}
	}
	l := &lender{open: o.OpenDevice, devices: map[string][]device.Device{}}
	defer func() { err = errors.Join(err, l.close()) }()
	kinds, err := r.kinds(l, o.Devices)
	if err != nil {
		return r, err
	}
	dir, remove, err := atomicfile.Temporary("gpupipe-verify")
	if err != nil {
		return r, usererror.New(err)
	}
	defer func() { err = errors.Join(err, usererror.New(remove())) }()
	t := &trainer{lender: l, openWorker: o.OpenWorker, dir: dir, batches: o.batches()}
	if err := t.writeText(); err != nil {
		return r, usererror.New(err)
	}
	r.Mixed, r.Batches = len(kinds) > 1, t.batches
	checks := slices.DeleteFunc(t.plan(kinds, o.Quick), func(c check) bool {
		return !strings.Contains(c.Claim, o.Filter) && !strings.Contains(c.Name, o.Filter)
	})
	if len(checks) == 0 {
		return r, usererror.Errorf("--filter: no case contains %q", o.Filter)
	}
	err = r.carryOut(ctx, checks, o.Progress)
	return r, err
}

func (o Options) batches() int {
	switch {
	case o.Batches > 0:
		return o.Batches
	case o.Quick:
		return 10
	}
	return 20
}

// kind is devices that are alike: all compute the same bits.
type kind struct {
	name    string
	devices []string // as settings name them
}

// kinds opens each device once and gathers the devices that are alike.
func (r *Report) kinds(l *lender, names []string) (ks []kind, err error) {
	at := map[device.Info]int{}
	for _, name := range names {
		dev, err := l.first(name)
		if err != nil {
			return nil, usererror.New(err)
		}
		info := dev.Info()
		r.Devices = append(r.Devices, info)
		info.Name, info.Threads = "", 0
		i, known := at[info]
		if !known {
			i = len(ks)
			at[info], ks = i, append(ks, kind{name: dev.Info().Name + " " + info.Adapter})
		}
		ks[i].devices = append(ks[i].devices, name)
	}
	return ks, nil
}

// carryOut judges case after case.
func (r *Report) carryOut(ctx context.Context, checks []check, progress func(done, total int, name string)) error {
	r.OK = true
	for i, c := range checks {
		if progress != nil {
			progress(i, len(checks), fmt.Sprintf("%s: %s", c.Claim, c.Name))
		}
		out := c.Case
		err := c.judge(ctx, &out)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			out.Verdict, out.Detail = Failed, err.Error()
		}
		r.OK = r.OK && out.OK()
		r.Cases = append(r.Cases, out)
	}
	return nil
}
