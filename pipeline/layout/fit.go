package layout

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// fitter plans an engine that fits the memory of its devices.
type fitter struct {
	config  config.Config
	options Options
	static  bool // tuned kernels did not fit
}

// fit plans an engine, and tries one that needs less memory if it does not fit. It changes the options to those used.
func (f *fitter) fit(o *engine.Options, plan partition.Plan) (*engine.Engine, error) {
	e, err := f.fitTuned(o)
	if !errors.Is(err, exec.ErrTooLarge) {
		return e, err
	}
	smaller, note := f.smaller(*o, plan)
	if note == "" {
		return nil, err
	}
	switch e, retried := f.fitTuned(&smaller); {
	case retried == nil:
		f.options.Note("%s", note)
		*o = smaller
		return e, nil
	case !errors.Is(retried, exec.ErrTooLarge): // it is not known whether it fits
		return nil, retried
	}
	return nil, err
}

// smaller returns options that need less memory, and a note about them. The note is empty if there are none.
func (f *fitter) smaller(o engine.Options, plan partition.Plan) (engine.Options, string) {
	p := f.config.Pipeline
	switch {
	case plan.SplitBackward && splitsBackward(f.config):
		o.Schedule = f.config.Schedule
		return o, "gradients are sent when the whole backward pass is done: split in two halves it does not fit the devices"
	case p.Stages*p.Chunks == 1 && p.Recompute == config.RecomputeAuto:
		o.Layout.Recompute = []bool{true}
		return o, "activations are computed a second time in the backward pass: kept, they do not fit the device"
	}
	return o, ""
}

// fitTuned plans an engine with the kernels that were chosen by timing. If those need too much memory on any rank, it
// changes the options of all ranks to the static choice, so that the choice does not depend on where the model is cut.
func (f *fitter) fitTuned(o *engine.Options) (*engine.Engine, error) {
	e, err := f.fitAsPlanned(*o)
	if f.options.Tune == nil || err != nil && !errors.Is(err, exec.ErrTooLarge) {
		return e, err
	}
	var why string
	if err != nil {
		why = fmt.Sprintf("the fastest kernels need more memory than there is: %v", err)
	} else if why = strings.Join(e.Untuned(), "; "); why == "" {
		return e, nil
	}
	static := *o
	static.Execute = engine.Execute(nil, f.config.Pipeline.MemoryBytes())
	e, err = f.fitAsPlanned(static)
	if err == nil {
		*o, f.static = static, true
		bits := ""
		if f.options.Resumed { // the checkpoint names other kernels
			bits = ", and the run goes on, but not to the same bits"
		}
		f.options.Note("%s; others run in their place%s", why, bits)
	}
	return e, err
}

// fitAsPlanned plans an engine. Ranks that share a device must fit it together.
func (f *fitter) fitAsPlanned(o engine.Options) (*engine.Engine, error) {
	e, err := engine.New(o)
	if err != nil {
		return nil, err
	}
	if err := FitTogether(e.Ranks(), o.Devices, f.config.Pipeline.MemoryBytes()); err != nil {
		return nil, err
	}
	return e, nil
}

// FitTogether returns an error that is exec.ErrTooLarge if ranks that share a device need more memory than it has: the
// budget in bytes, or with 0 what the device reports.
func FitTogether(ranks []engine.RankPlan, devices []device.Device, budget int64) error {
	needs, names := map[string]int64{}, map[string][]string{}
	for i, l := range ranks {
		name, have := l.Device.Name, cmp.Or(budget, device.Budget(devices[i]))
		needs[name], names[name] = needs[name]+l.Memory.Total, append(names[name], l.Name)
		if n := names[name]; len(n) > 1 && have > 0 && needs[name] > have {
			return fmt.Errorf("%s and %s on %s: %w: %s needed together, %s available", strings.Join(n[:len(n)-1], ", "), l.Name, name,
				exec.ErrTooLarge, units.Bytes(needs[name]), units.Bytes(have))
		}
	}
	return nil
}
