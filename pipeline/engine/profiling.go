package engine

import (
	"errors"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Profiler records the times of the programs of some batches, measured by the devices' clocks. Each rank calls it from
// its own goroutine.
type Profiler interface {
	Wants(batch int) bool
	// Ran reports one run: what it does ("forward", "update"), the kernels of its program, and their times.
	Ran(rank, batch int, what string, kernels []exec.KernelInfo, t exec.Times)
	// Untimed reports that a rank cannot be measured. Its programs run nevertheless.
	Untimed(rank int, err error)
}

// timedSession is a Session whose programs can be measured; exec.Session is one.
type timedSession interface {
	RunTimed(program string, at exec.Binding) (*exec.Measuring, error)
	Kernels(program string) []exec.KernelInfo
}

// runProgram enqueues a program, and measures it if the profiler wants its batch. The results are the same.
func (w *worker) runProgram(a schedule.Action, name string, at exec.Binding) error {
	p := w.rank.engine.profiler
	if p == nil || w.segment.task.evaluates || !p.Wants(a.Batch) {
		return w.rank.session.RunAt(name, at)
	}
	s, ok := w.rank.session.(timedSession)
	if !ok {
		p.Untimed(w.rank.index, device.ErrNoTimestamps)
		return w.rank.session.RunAt(name, at)
	}
	m, err := s.RunTimed(name, at)
	if errors.Is(err, device.ErrNoTimestamps) { // nothing was run
		p.Untimed(w.rank.index, err)
		return w.rank.session.RunAt(name, at)
	}
	if err != nil {
		return err
	}
	w.operations.add(a, []device.Pending{timing{m, func(t exec.Times) {
		p.Ran(w.rank.index, a.Batch, what(a.Kind), s.Kernels(name), t)
	}}}, func([][]byte) {})
	return nil
}

// what names a run in a profile.
func what(k schedule.Kind) string {
	switch k {
	case schedule.InputGrad:
		return "input gradients"
	case schedule.WeightGrad:
		return "weight gradients"
	}
	return string(category(k))
}

// timing is a measurement in progress. Waiting for it reports the times.
type timing struct {
	m      *exec.Measuring
	report func(exec.Times)
}

func (t timing) Wait() ([]byte, error) {
	times, err := t.m.Wait()
	if err == nil {
		t.report(times)
	}
	return nil, err
}
