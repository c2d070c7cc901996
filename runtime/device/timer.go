package device

import "time"

// Timer is what devices with timestamps also implement.
type Timer interface {
	// RunTimed enqueues a loaded program as Run does and measures each of its commands on the device's clock. The
	// commands run one after another, so that no time is counted twice: their sum is above what Run takes where a
	// device overlaps them. The results are those of Run, to the last bit. A device that has no timestamps after all
	// gives ErrNoTimestamps, and runs nothing.
	RunTimed(l Loaded) (Timings, error)
}

// Timings is a measurement under way.
type Timings interface {
	// Wait returns the time of each command of the program once the last has run. A clock with coarse ticks may see a
	// short command as 0.
	Wait() ([]time.Duration, error)
}
