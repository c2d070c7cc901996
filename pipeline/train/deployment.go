package train

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// deployment is a run's devices and the engine on them. A run opens it, loads it and closes it. After a fault of a
// device it shuts the deployment down and opens it again. The layout, the faults and the profile outlive that.
type deployment struct {
	job       *job
	tune      *tune.Cache     // nil: the static choice of kernels
	layout    *layout.Layout  // nil: not chosen yet
	devices   []device.Device // one per rank; none if the ranks are in other processes
	engine    Pipeline        // nil: none is open
	cancels   []func() bool   // nil after the first step on the devices; see cancelPending
	profiling *profiling      // nil: none
	peaks     []float64       // of the ranks' devices in FLOP/s, 0: not known; nil: not measured yet
	faults    faultLog
}

// shutdownTimeout is how long devices may take to come to rest after a failure.
const shutdownTimeout = 10 * time.Second

// OpenWorker opens a device in a process of its own. Errors of a lost process wrap device.ErrLost. So do the errors of
// a device that has work and makes no progress for longer than the timeout. Close ends the process.
type OpenWorker func(name string, timeout time.Duration) (device.Device, error)

// isolated reports whether devices are in other processes, so that the run survives the loss of one.
func (d *deployment) isolated() bool {
	return d.job.config.Pipeline.Processes.Isolated() || d.job.options.Devices.Remote != nil
}

// open opens the devices and plans the engine. resumed reports whether the run continues from a checkpoint.
func (d *deployment) open(ctx context.Context, resumed bool) (err error) {
	c, o := d.job.config, d.job.options
	if o.Devices.Remote != nil {
		return d.openRemote(ctx)
	}
	opener := o.Devices.Open
	if d.isolated() {
		opener = d.openWorker
	}
	if d.devices, err = openDevices(opener, layout.Names(c.Pipeline, o.Devices.Concurrent), d.faults.any()); err != nil {
		return err
	}
	d.cancelDevices(ctx)
	if c.Pipeline.Independent() {
		return d.openReplicas(ctx, resumed)
	}
	if d.layout != nil {
		again := d.layout.Engine
		again.Optimizer, again.Devices = d.job.optimizer, d.devices
		e, err := engine.New(again)
		if err != nil {
			return layout.MarkTooLarge(err)
		}
		d.engine = e
		return nil
	}
	e, l, err := d.job.layoutTask().Choose(ctx, d.job.optimizer, d.devices, layout.Options{Execute: o.Devices.Execute, Tune: d.tune,
		Costs: o.Devices.Costs, Resumed: resumed, Measuring: o.Report.Measuring, Note: o.Report.Note})
	if err != nil {
		return err
	}
	d.engine, d.layout = e, l
	return nil
}

// openRemote opens a pipeline whose ranks are in other processes.
func (d *deployment) openRemote(ctx context.Context) error {
	t, err := d.job.remoteTask()
	if err != nil {
		return err
	}
	d.cancels = nil
	e, err := d.job.options.Devices.Remote(ctx, t)
	if err != nil {
		return err
	}
	d.engine = e
	if l, ok := e.(linked); ok {
		d.job.links = l.LinkValues
	}
	return nil
}

// linked is a pipeline whose ranks are connected by links.
type linked interface {
	// LinkValues are what each link carries, by their names in metrics.jsonl.
	LinkValues() []metrics.Value
}

// openWorker is a layout.OpenDevice.
func (d *deployment) openWorker(name string) (device.Device, error) {
	timeout, err := d.job.config.Pipeline.Processes.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return d.job.options.Devices.OpenWorker(name, timeout)
}

// load brings the programs and the initial state to the devices, for a run that has finished some steps.
func (d *deployment) load(ctx context.Context, step int, at start) error {
	d.cancelEngine(ctx)
	if err := d.prepareProfile(step); err != nil {
		return err
	}
	if err := d.engine.Load(); err != nil {
		return layout.MarkTooLarge(err)
	}
	return d.upload(at.weights, at.replicas)
}

// ranks describes the engine's ranks; none without an engine.
func (d *deployment) ranks() []engine.RankPlan {
	if d.engine == nil {
		return nil
	}
	return d.engine.Ranks()
}

// cut is where the model is cut.
func (d *deployment) cut() []config.CutPoint {
	var cut []int
	p, ranks := d.job.config.Pipeline, d.ranks()
	for v := 1; v < p.Stages*p.Chunks; v++ {
		cut = append(cut, ranks[v%p.Stages].Units[v/p.Stages][0])
	}
	return config.CutPoints(d.job.model, cut)
}

// prepareProfile profiles a few steps. After a restart it measures them again, unless the profile is written.
func (d *deployment) prepareProfile(step int) (err error) {
	o := d.job.options
	if o.Profile == nil || d.profiling != nil && d.profiling.written {
		return nil
	}
	if d.profiling, err = newProfiling(d.job, step, d.engine.Ranks(), d.devices, d.profiling); err == nil {
		d.engine.SetProfile(d.profiling)
	}
	return err
}

// comparePrediction reports how the speed of the run compares with the predicted one.
func (d *deployment) comparePrediction(tokensPerSec float64) {
	if d.layout != nil && d.layout.Prediction != nil {
		d.job.options.Report.Note("speed: %s", d.layout.Prediction.Compare(tokensPerSec))
	}
}

// close closes the engine and the devices.
func (d *deployment) close() error {
	if d.isolated() {
		return closeIsolated(d.engine, d.devices)
	}
	var errs []error
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	for _, dev := range d.devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}

// shutDown closes a deployment that has lost a device, so that it can be opened again. It reports whether that took too
// long.
func (d *deployment) shutDown() (timedOut bool) {
	closed := make(chan struct{})
	e, devices := d.engine, d.devices
	go func() {
		kill(devices)
		_ = closeIsolated(e, devices) // errors of lost devices are expected
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(shutdownTimeout):
		timedOut = true
	}
	d.engine, d.devices = nil, nil
	return timedOut
}

// kill ends the processes of devices that are no longer needed. One that hangs would take long to close.
func kill(devices []device.Device) {
	for _, dev := range devices {
		if d, ok := dev.(interface{ Process() *os.Process }); ok {
			_ = d.Process().Kill() // it may have ended
		}
	}
}

// closeIsolated ends the devices first, so that nothing waits for one that hangs. Errors of lost devices are expected.
func closeIsolated(e Pipeline, devices []device.Device) error {
	late := time.AfterFunc(shutdownTimeout, func() { kill(devices) })
	defer late.Stop()
	err := closeDevices(devices)
	if e != nil {
		err = errors.Join(err, e.Close())
	}
	if errors.Is(err, device.ErrLost) || errors.Is(err, device.ErrClosed) {
		return nil
	}
	return err
}

// closeDevices closes devices in parallel.
func closeDevices(devices []device.Device) error {
	errs := make([]error, len(devices))
	var closing sync.WaitGroup
	for i, dev := range devices {
		closing.Go(func() { errs[i] = dev.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}
