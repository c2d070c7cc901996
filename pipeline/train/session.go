package train

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// session is a run's devices and the engine on them. A run opens it, loads it and closes it. After a fault of a device
// it shuts the session down and opens it again: layout, faults and profile outlive that.
type session struct {
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

func newSession(j *job) *session { return &session{job: j, tune: j.options.Tune} }

// shutdownTimeout is how long devices may take to come to rest after a failure.
const shutdownTimeout = 10 * time.Second

// OpenWorker opens a device in a process of its own. Errors of a lost process wrap device.ErrLost. So do the errors of
// a device that has work and makes no progress for longer than the timeout. Close ends the process.
type OpenWorker func(name string, timeout time.Duration) (device.Device, error)

// isolated reports whether devices are in other processes, so that the run survives the loss of one.
func (s *session) isolated() bool {
	return s.job.config.Pipeline.Processes.Isolated() || s.job.options.Remote != nil
}

// open opens the devices and plans the engine. resumed reports whether the run continues from a checkpoint.
func (s *session) open(ctx context.Context, resumed bool) (err error) {
	c, o := s.job.config, s.job.options
	if o.Remote != nil {
		return s.openRemote(ctx, resumed)
	}
	opener := o.OpenDevice
	if s.isolated() {
		if opener = s.openWorker; o.OpenWorker == nil {
			return invalidIsolation(c)
		}
	}
	if s.devices, err = openDevices(opener, layout.Names(c.Pipeline, o.Concurrent), s.faults.any()); err != nil {
		return err
	}
	s.cancelDevices(ctx)
	if s.layout != nil {
		again := s.layout.Engine
		again.Optimizer, again.Devices = s.job.optimizer, s.devices
		e, err := engine.New(again)
		if err != nil {
			return layout.MarkTooLarge(err)
		}
		s.engine = e
		return nil
	}
	e, l, err := s.job.layoutTask().Choose(ctx, s.job.optimizer, s.devices, layout.Options{Execute: o.Execute, Tune: s.tune,
		Costs: o.Costs, Resumed: resumed, Measuring: o.Report.Measuring, Note: o.Report.Note})
	if err != nil {
		return err
	}
	s.engine, s.layout = e, l
	return nil
}

// openRemote opens a pipeline whose ranks are in other processes.
func (s *session) openRemote(ctx context.Context, resumed bool) error {
	t, err := s.job.remoteTask(resumed)
	if err != nil {
		return err
	}
	s.cancels = nil
	e, err := s.job.options.Remote(ctx, t)
	if err != nil {
		return err
	}
	s.engine = e
	if l, ok := e.(linked); ok {
		s.job.links = l.LinkValues
	}
	return nil
}

// linked is a pipeline whose ranks are connected by links.
type linked interface {
	// LinkValues are what each link carries, by their names in metrics.jsonl.
	LinkValues() []metrics.Value
}

// openWorker is a layout.OpenDevice.
func (s *session) openWorker(name string) (device.Device, error) {
	timeout, err := s.job.config.Pipeline.Processes.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return s.job.options.OpenWorker(name, timeout)
}

// load brings the programs and the initial state to the devices, for a run that has finished some steps.
func (s *session) load(ctx context.Context, step int, w *weights.Source) error {
	s.cancelEngine(ctx)
	if err := s.prepareProfile(step); err != nil {
		return err
	}
	if err := s.engine.Load(); err != nil {
		return layout.MarkTooLarge(err)
	}
	return w.UploadPipeline(s.engine, s.job.secondVersion())
}

// ranks describes the engine's ranks; none without an engine.
func (s *session) ranks() []engine.RankPlan {
	if s.engine == nil {
		return nil
	}
	return s.engine.Ranks()
}

// cut is where the model is cut: the first unit of each virtual stage but the first.
func (s *session) cut() (cut []int) {
	p, ranks := s.job.config.Pipeline, s.ranks()
	for v := 1; v < p.Stages*p.Chunks; v++ {
		cut = append(cut, ranks[v%p.Stages].Units[v/p.Stages][0])
	}
	return cut
}

// prepareProfile profiles a few steps. After a restart it measures them again, unless the profile is written.
func (s *session) prepareProfile(step int) (err error) {
	o := s.job.options
	if o.Profile == nil || s.profiling != nil && s.profiling.written {
		return nil
	}
	if s.profiling, err = newProfiling(s.job, step, s.engine.Ranks(), s.devices, s.profiling); err == nil {
		s.engine.SetProfile(s.profiling)
	}
	return err
}

// comparePrediction reports how the speed of the run compares with the predicted one.
func (s *session) comparePrediction(tokensPerSec float64) {
	if s.layout != nil && s.layout.Prediction != nil {
		s.job.options.Report.Note("speed: %s", s.layout.Prediction.Compare(tokensPerSec))
	}
}

// close releases what is on the devices, and the devices.
func (s *session) close() error {
	if s.isolated() {
		return closeIsolated(s.engine, s.devices)
	}
	var errs []error
	if s.engine != nil {
		errs = append(errs, s.engine.Close())
	}
	for _, dev := range s.devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}

// shutDown closes a session that has lost a device, so that it can be opened again. It reports whether that took too
// long.
func (s *session) shutDown() (timedOut bool) {
	closed := make(chan struct{})
	e, devices := s.engine, s.devices
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
	s.engine, s.devices = nil, nil
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
