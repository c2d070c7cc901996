package bench

import (
	"errors"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// The clocks of measurements.
const (
	GPU  = "gpu"  // the device's timestamps of each command
	Host = "host" // the host's clock, from the first of several runs until Sync returns
)

// work is something that a device does repeatedly.
type work struct {
	dev   device.Device
	run   func() error
	timed func() (total, error) // nil: measured by the host's clock
}

// total waits for the sum of a run's times on the device's clock.
type total func() (time.Duration, error)

// program returns a loaded program as work.
func program(dev device.Device, l device.Loaded) work {
	return work{dev, func() error { return dev.Run(l) }, func() (total, error) {
		timer, ok := dev.(device.Timer)
		if !ok {
			return nil, device.ErrNoTimestamps
		}
		t, err := timer.RunTimed(l)
		if err != nil {
			return nil, err
		}
		return func() (sum time.Duration, err error) {
			times, err := t.Wait()
			for _, d := range times {
				sum += d
			}
			return sum, err
		}, nil
	}}
}

// programWork is the work of running programs, one after the other.
func programWork(dev device.Device, s *exec.Session, programs ...string) work {
	run := func() error {
		for _, p := range programs {
			if err := s.Run(p); err != nil {
				return err
			}
		}
		return nil
	}
	return work{dev, run, func() (total, error) {
		var all []*exec.Measuring
		for _, p := range programs {
			m, err := s.RunTimed(p, nil)
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
		return func() (sum time.Duration, err error) {
			for _, m := range all {
				t, err := m.Wait()
				if err != nil {
					return 0, err
				}
				sum += t.Total()
			}
			return sum, nil
		}, nil
	}}
}

// onHost returns the time of one of n runs by the host's clock.
func (w work) onHost(n int) (time.Duration, error) {
	start := time.Now()
	for range n {
		if err := w.run(); err != nil {
			return 0, err
		}
	}
	err := w.dev.Sync()
	return time.Since(start) / time.Duration(n), err
}

// onGPU returns the time of one of n runs by the device's clock.
func (w work) onGPU(n int) (time.Duration, error) {
	var waiting []total
	for range n {
		t, err := w.timed()
		if err != nil {
			return 0, err
		}
		waiting = append(waiting, t)
	}
	var sum time.Duration
	for _, wait := range waiting {
		t, err := wait()
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum / time.Duration(n), nil
}

// subject is work and the clock that measures it.
type subject struct {
	clock string
	run   func(n int) (time.Duration, error)
	times []time.Duration
}

// subject uses the device's clock if there is one that reports more than zero.
func (w work) subject() (*subject, error) {
	if _, err := w.onHost(1); err != nil { // compiles and fills caches
		return nil, err
	}
	if w.timed != nil {
		t, err := w.onGPU(1)
		if err == nil && t > 0 {
			return &subject{clock: GPU, run: w.onGPU}, nil
		}
		if err != nil && !errors.Is(err, device.ErrNoTimestamps) {
			return nil, err
		}
	}
	return &subject{clock: Host, run: w.onHost}, nil
}

// alternate measures batches of one subject after the other, so that other work on the machine affects all alike. Each
// subject's result is its median. between, if not nil, runs before each round.
func (o Options) alternate(subjects []*subject, between func()) error {
	length, batches := o.batch()
	counts := make([]int, len(subjects))
	for i, s := range subjects {
		once, err := s.run(1)
		if err != nil {
			return err
		}
		counts[i] = max(1, min(1000, int(length/max(once, time.Microsecond))))
	}
	for range batches {
		if between != nil {
			between()
		}
		for i, s := range subjects {
			t, err := s.run(counts[i])
			if err != nil {
				return err
			}
			s.times = append(s.times, t)
		}
	}
	return nil
}

// median returns at least a nanosecond, so that rates are finite even with a coarse clock.
func (s *subject) median() time.Duration { return max(median(s.times), 1) }

func (s *subject) fastest() time.Duration { return max(slices.Min(s.times), 1) }

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
