package exec

import (
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// Times of one run of a program, on the device's clock.
type Times struct {
	Kernels []time.Duration // in the order of Plan.Kernels; the sum of a kernel's passes
	Copies  time.Duration   // into outputs and variables, at the end
}

// Total returns the sum of all times.
func (t Times) Total() time.Duration {
	total := t.Copies
	for _, k := range t.Kernels {
		total += k
	}
	return total
}

// Measuring is a measured run in progress.
type Measuring struct {
	timings  device.Timings
	commands []command
	kernels  int
}

// RunTimed enqueues a program as RunAt does, and measures its kernels. The results have the same bits. On a device that
// cannot measure, nothing runs and the error wraps device.ErrNoTimestamps.
func (s *Session) RunTimed(program string, at Binding) (*Measuring, error) {
	l, main, err := s.find(program, at)
	if err != nil {
		return nil, err
	}
	timer, ok := s.plan.dev.(device.Timer)
	if !ok {
		return nil, device.Named("run", program, s.plan.dev.Info().Name, device.ErrNoTimestamps)
	}
	timings, err := timer.RunTimed(main)
	if err != nil {
		return nil, err
	}
	return &Measuring{timings, l.recorded.commands, len(l.fused.Groups)}, nil
}

// Wait returns the times once the program has run.
func (m *Measuring) Wait() (Times, error) {
	commands, err := m.timings.Wait()
	if err != nil {
		return Times{}, err
	}
	t := Times{Kernels: make([]time.Duration, m.kernels)}
	for i, d := range commands {
		if k := m.commands[i].kernel; k == noKernel {
			t.Copies += d
		} else {
			t.Kernels[k] += d
		}
	}
	return t, nil
}

// Kernels describes a program's kernels, as Plan.Kernels does.
func (s *Session) Kernels(program string) []KernelInfo { return s.plan.Kernels(program) }
