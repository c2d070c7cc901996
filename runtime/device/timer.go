package device

import "time"

// Timer is implemented by devices with timestamps.
type Timer interface {
	// RunTimed enqueues a loaded program as Run does, and measures each of its commands on the device's clock. The
	// commands run one after another, so no time counts twice: their sum exceeds the time of Run where a device
	// overlaps commands. The results have the same bits. A device without timestamps returns ErrNoTimestamps and runs
	// nothing.
	RunTimed(l Loaded) (Timings, error)
}

// Timings is a measurement in progress.
type Timings interface {
	// Wait returns the time of each command when the last has run. A coarse clock may report 0 for a short command.
	Wait() ([]time.Duration, error)
}
