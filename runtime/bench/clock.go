package bench

import (
	"errors"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// What a time was taken with.
const (
	GPU  = "gpu"  // timestamps of the device, of each command
	Host = "host" // from the first of several runs to the device's word that the last is done
)

// work is something that a device does again and again.
type work struct {
	dev   device.Device
	run   func() error
	timed func() (total, error) // nil: what counts is the host's clock
}

// total waits for the sum of a run's times on the device's clock.
type total func() (time.Duration, error)

// program is a loaded program as work.
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

// session is a session's programs, one after the other, as work.
func session(dev device.Device, s *exec.Session, programs ...string) work {
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

// onHost is the time of one of n runs by the host's clock.
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

// onGPU is the time of one of n runs by the device's clock.
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

// subject is work with the clock that it is measured with.
type subject struct {
	clock string
	run   func(n int) (time.Duration, error)
	times []time.Duration
}

// subject takes the device's clock where it has one that tells more than nothing.
func (w work) subject() (*subject, error) {
	if _, err := w.onHost(1); err != nil { // compiles, and fills caches
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

// byTurns measures in batches, one subject after the other, so that whatever else the machine does meets all of them alike: each one's median
// is what it took. between, if not nil, runs before each round.
func (o Options) byTurns(subjects []*subject, between func()) error {
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

// median is no less than a nanosecond, so that rates are finite whatever a coarse clock says.
func (s *subject) median() time.Duration { return max(median(s.times), 1) }

func (s *subject) fastest() time.Duration { return max(slices.Min(s.times), 1) }

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
