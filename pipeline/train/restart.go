package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// isolated tells whether devices are in processes of their own.
func (r *run) isolated() bool { return r.Pipeline.Isolate == config.IsolateProcess }

// OpenWorker opens a device in a process of its own. What is lost with the process gives errors that wrap device.ErrLost, as does a device
// that has work and shows no progress for longer than silence; Close ends the process.
type OpenWorker func(name string, silence time.Duration) (device.Device, error)

// openWorker is an OpenDevice.
func (r *run) openWorker(name string) (device.Device, error) {
	silence, err := r.Pipeline.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return r.OpenWorker(name, silence)
}

// restarting tells whether a device was lost.
func (r *run) restarting() bool { return len(r.faults) > 0 }

// survive goes on when a device was lost that is in a process of its own: as a run that is resumed does, from the newest checkpoint, or
// from the beginning where there is none. Other errors stay what they are.
func (r *run) survive(ctx context.Context, err error) error {
	for errors.Is(err, device.ErrLost) && !r.hastened(ctx, err) {
		if !r.isolated() {
			return fmt.Errorf("%w; %s; with pipeline.isolate: %s a run goes on by itself", err, r.kept(), config.IsolateProcess)
		}
		began := time.Now()
		if err := r.count(err); err != nil {
			return err
		}
		fault := r.faults[len(r.faults)-1]
		if ctx.Err() == nil {
			r.noteFault(fault)
			err = r.restart(ctx)
		}
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, device.ErrLost)):
			r.Report.Note("%s; it is not started again", fault)
			return r.interrupted(ctx)
		case err == nil:
			r.noteRestart(began, fault)
			err = r.loop(ctx)
		}
	}
	if r.hastened(ctx, err) {
		return r.leave(ctx)
	}
	return err
}

// count adds a fault to those since the newest checkpoint, and says when they are too many.
func (r *run) count(fault error) error {
	if r.saved > r.since {
		r.faults = nil
	}
	r.since, r.faults = r.saved, append(r.faults, r.seen(fault))
	if len(r.faults) <= r.Pipeline.Restarts {
		return nil
	}
	again := "the same command goes on from there"
	if r.saved < 0 {
		again = "the same command begins again"
	}
	if !r.Resume { // else it was given, or is not asked for, as in a study
		again = "with --resume " + again
	}
	return fmt.Errorf("%w %d times in a row, and pipeline.restarts is %d: %s; %s: %s", device.ErrLost, len(r.faults),
		r.Pipeline.Restarts, strings.Join(r.faults, "; "), r.kept(), again)
}

// seen is what befell which devices.
func (r *run) seen(fault error) string {
	all := befallen(fault)
	if lost := slices.DeleteFunc(slices.Clone(all), func(err error) bool { return !errors.Is(err, device.ErrLost) }); len(lost) > 0 {
		all = lost // who else gave up may have done so for want of them
	}
	var told, named []string
	for _, err := range all {
		var f *engine.Fault
		var e *device.Error
		ofLine, ofDevice := errors.As(err, &f), errors.As(err, &e)
		switch {
		case !ofDevice:
			told = append(told, err.Error())
		case ofLine || !slices.Contains(named, e.Device): // a device that was lost says so to whoever closes it too
			named = append(named, e.Device)
			told = append(told, fmt.Sprintf("%s: %s", r.lineOf(err, e.Device), strings.TrimPrefix(e.Cause.Error(), device.ErrLost.Error()+": ")))
		}
	}
	if len(told) == 0 {
		return fault.Error()
	}
	doing := ""
	if d := (*during)(nil); errors.As(fault, &d) {
		doing = d.what + ": "
	}
	return doing + strings.Join(told, "; ")
}

// during is an error of what a run does besides training, whose text says so: devices tell what failed, but not what for.
type during struct {
	what string // "evaluating after step 4"
	error
}

func (d *during) Unwrap() error { return d.error }

// evaluating is a during of an evaluation.
func evaluating(what string, err error) error { return &during{what, fmt.Errorf("%s: %w", what, err)} }

// befallen are the errors that an error is made of, each of one line, or else of one device: several may fail at once.
func befallen(err error) (all []error) {
	switch x := err.(type) {
	case *engine.Fault, *device.Error:
		return []error{err}
	case interface{ Unwrap() error }:
		return befallen(x.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range x.Unwrap() {
			all = append(all, befallen(e)...)
		}
	}
	return all
}

// lineOf names the line that a device was lost on: the one that says so, or else the only one on a device of that name.
func (r *run) lineOf(fault error, name string) string {
	var lines []string
	if r.engine != nil {
		for _, l := range r.engine.Ranks() {
			if l.Device.Name == name {
				lines = append(lines, l.Name)
			}
		}
	}
	if f := (*engine.Fault)(nil); errors.As(fault, &f) {
		lines = []string{f.Rank}
	}
	if len(lines) != 1 {
		return "device " + name
	}
	return fmt.Sprintf("%s (%s)", lines[0], name)
}

// restart closes the devices and what depends on the step, and opens them again at the newest checkpoint. What worked before and
// now does not is one more fault of the devices.
func (r *run) restart(ctx context.Context) error {
	if err := r.lower(); err != nil {
		return err
	}
	r.suspect = nil
	r.step, r.last, r.skipped, r.leftOut, r.states = 0, nil, r.skippedThen, 0, nil
	r.result.Stopped, r.result.Checkpoint = "", ""
	rewind := func(context.Context) error { return r.hooks.Rewind() }
	if err := r.do(ctx, rewind, r.openRate, r.makeOptimizer, r.findWeights, r.openScalars, r.feedBatches); err != nil {
		return err
	}
	if !r.pause(ctx) {
		return nil
	}
	switch err := r.do(ctx, r.plan, r.load); {
	case errors.Is(err, device.ErrLost):
		return err
	case err != nil:
		return fmt.Errorf("%w (%w)", err, device.ErrLost)
	}
	return r.do(ctx, r.firstBatch, r.openFolder, r.announce)
}

// lower closes all that a restart makes anew.
func (r *run) lower() error {
	r.feeder.Close() // lines that wait for it end
	closed := make(chan struct{})
	go func() {
		kill(r.devices)
		_ = closeIsolated(r.engine, r.devices) // what a lost device says to that is of no interest
		close(closed)
	}()
	var err error
	select {
	case <-closed:
	case <-time.After(patience):
		err = fmt.Errorf("%s; a device is still at work %v later; %s", r.faults[len(r.faults)-1], patience, r.kept())
	}
	if r.weights != nil {
		err = errors.Join(err, r.weights.close())
	}
	r.feeder, r.engine, r.devices, r.weights = nil, nil, nil, nil
	return err
}

// pause gives a device time to come back, the more the more often it was lost. It tells whether the run is to go on.
func (r *run) pause(ctx context.Context) bool {
	wait := time.Duration(0)
	if n := len(r.faults); n > 1 {
		wait = min(time.Second<<min(n-2, 10), 30*time.Second)
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// closeDevices releases what is on the devices, and the devices.
func (r *run) closeDevices() error {
	if r.isolated() {
		return closeIsolated(r.engine, r.devices)
	}
	var errs []error
	if r.engine != nil {
		errs = append(errs, r.engine.Close())
	}
	for _, dev := range r.devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}

// kill ends processes that nothing is wanted of any more. One that hangs would take long to close.
func kill(devices []device.Device) {
	for _, dev := range devices {
		if d, ok := dev.(interface{ Process() *os.Process }); ok {
			_ = d.Process().Kill() // it may have ended
		}
	}
}

// closeIsolated ends the devices first, so that nothing waits for one that hangs. That one is lost is nothing to fail for any more.
func closeIsolated(e *engine.Engine, devices []device.Device) error {
	late := time.AfterFunc(patience, func() { kill(devices) })
	defer late.Stop()
	err := endAll(devices)
	if e != nil {
		err = errors.Join(err, e.Close())
	}
	if errors.Is(err, device.ErrLost) || errors.Is(err, device.ErrClosed) {
		return nil
	}
	return err
}

// endAll closes devices, all at a time.
func endAll(devices []device.Device) error {
	errs := make([]error, len(devices))
	var closing sync.WaitGroup
	for i, dev := range devices {
		closing.Go(func() { errs[i] = dev.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

// noteFault tells of a fault at once: what follows may take long.
func (r *run) noteFault(fault string) {
	from := "the beginning"
	if r.saved >= 0 {
		from = fmt.Sprintf("the checkpoint of step %d", r.saved)
	}
	r.Report.Note("%s; restarting from %s, attempt %d of %d", fault, from, len(r.faults), r.Pipeline.Restarts)
}

// noteRestart tells that a restart, which began with a fault, is done.
func (r *run) noteRestart(began time.Time, fault string) {
	r.Report.Note("restarted, going on from step %d", r.step)
	r.trace.Complete(trace.RunTrack, trace.Run, trace.RestartEvent, began, time.Since(began), map[string]any{"fault": fault, "step": r.step})
}
