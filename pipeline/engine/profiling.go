package engine

import (
	"errors"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Profiler is told what the programs of some batches took on their devices' clocks. All lines tell, each from a goroutine of its own.
type Profiler interface {
	Wants(batch int) bool
	// Ran tells of one run, by what it does ("forward", "update"), with the kernels of its program.
	Ran(line, batch int, what string, kernels []exec.KernelInfo, t exec.Times)
	// Untimed tells that a line cannot be measured: its programs ran all the same.
	Untimed(line int, err error)
}

// timedSession is a Session whose programs can be measured; exec.Session is one.
type timedSession interface {
	RunTimed(program string, at exec.Binding) (*exec.Measuring, error)
	Kernels(program string) []exec.KernelInfo
}

// runProgram enqueues a program, and has it measured if its batch is one of those. What it computes is the same.
func (w *worker) runProgram(a schedule.Action, name string, at exec.Binding) error {
	p := w.e.Profile
	if p == nil || w.seg.task.evaluates || !p.Wants(a.Batch) {
		return w.session.RunAt(name, at)
	}
	s, ok := w.session.(timedSession)
	if !ok {
		p.Untimed(w.index, device.ErrNoTimestamps)
		return w.session.RunAt(name, at)
	}
	m, err := s.RunTimed(name, at)
	if errors.Is(err, device.ErrNoTimestamps) { // nothing was run
		p.Untimed(w.index, err)
		return w.session.RunAt(name, at)
	}
	if err != nil {
		return err
	}
	w.flights <- flight{a, []device.Pending{timing{m, func(t exec.Times) {
		p.Ran(w.index, a.Batch, what(a.Kind), s.Kernels(name), t)
	}}}, func([][]byte) {}}
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

// timing is a measurement under way, waited for as reads are.
type timing struct {
	m    *exec.Measuring
	tell func(exec.Times)
}

func (t timing) Wait() ([]byte, error) {
	times, err := t.m.Wait()
	if err == nil {
		t.tell(times)
	}
	return nil, err
}
