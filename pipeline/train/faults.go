package train

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// faultLog is the losses of devices since the newest checkpoint.
type faultLog struct {
	causes []string
	since  int // step of the newest checkpoint at the first of them
}

// any reports whether a device was lost.
func (f *faultLog) any() bool { return len(f.causes) > 0 }

// last is the newest cause.
func (f *faultLog) last() string { return f.causes[len(f.causes)-1] }

// add adds a cause. A checkpoint since the last one starts the count again.
func (f *faultLog) add(cause string, saved int) {
	if saved > f.since {
		f.causes = nil
	}
	f.since, f.causes = saved, append(f.causes, cause)
}

// describeFault describes which devices failed, and how.
func describeFault(fault error, ranks []engine.RankPlan) string {
	all := faultsIn(fault)
	if lost := slices.DeleteFunc(slices.Clone(all), func(err error) bool { return !errors.Is(err, device.ErrLost) }); len(lost) > 0 {
		all = lost // other ranks may have given up because of the lost ones
	}
	var causes, named []string
	for _, err := range all {
		var f *engine.Fault
		var e *device.Error
		ofRank, ofDevice := errors.As(err, &f), errors.As(err, &e)
		switch {
		case !ofDevice:
			causes = append(causes, err.Error())
		case ofRank || !slices.Contains(named, e.Device): // closing a lost device returns the same error
			named = append(named, e.Device)
			causes = append(causes, fmt.Sprintf("%s: %s", rankOf(err, e.Device, ranks),
				strings.TrimPrefix(e.Cause.Error(), device.ErrLost.Error()+": ")))
		}
	}
	if len(causes) == 0 {
		return fault.Error()
	}
	doing := ""
	if d := (*during)(nil); errors.As(fault, &d) {
		doing = d.what + ": "
	}
	return doing + strings.Join(causes, "; ")
}

// during is an error outside training. Its text names what the run was doing, which the errors of devices do not know.
type during struct {
	what string // "evaluating after step 4"
	error
}

func (d *during) Unwrap() error { return d.error }

// evaluating is a during of an evaluation.
func evaluating(what string, err error) error { return &during{what, fmt.Errorf("%s: %w", what, err)} }

// faultsIn lists the errors that an error joins, each of one rank or of one device: several may fail at once.
func faultsIn(err error) (all []error) {
	switch x := err.(type) {
	case *engine.Fault, *device.Error:
		return []error{err}
	case interface{ Unwrap() error }:
		return faultsIn(x.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range x.Unwrap() {
			all = append(all, faultsIn(e)...)
		}
	}
	return all
}

// rankOf names the rank that lost a device: the one that returned the error, or else the only one on a device of that
// name.
func rankOf(fault error, dev string, ranks []engine.RankPlan) string {
	var names []string
	for _, r := range ranks {
		if r.Device.Name == dev {
			names = append(names, r.Name)
		}
	}
	if f := (*engine.Fault)(nil); errors.As(fault, &f) {
		names = []string{f.Rank}
	}
	if len(names) != 1 {
		return "device " + dev
	}
	return fmt.Sprintf("%s (%s)", names[0], dev)
}
