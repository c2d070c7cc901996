//go:build linux && cgo

package cpu

/*
#include "pool.h"
*/
import "C"

import (
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// timings are the times of a program's commands, which belong to the queue's goroutine until the job is done.
type timings struct {
	queue       *queue
	number      uint64 // of the job
	nanoseconds []C.uint64_t
}

// RunTimed enqueues a loaded program as Run does, and measures its commands by the host's monotonic clock.
func (d *Device) RunTimed(p device.Loaded) (device.Timings, error) {
	t := &timings{queue: d.queue}
	var err error
	t.number, err = d.run(p, func(commands int) []C.uint64_t {
		t.nanoseconds = make([]C.uint64_t, commands)
		return t.nanoseconds
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Wait returns each command's time.
func (t *timings) Wait() ([]time.Duration, error) {
	t.queue.wait(t.number)
	times := make([]time.Duration, len(t.nanoseconds))
	for i, n := range t.nanoseconds {
		times[i] = time.Duration(n)
	}
	return times, nil
}
