// Package sidecar is a device in a process of its own: a driver that crashes or hangs there takes nothing else with it, and the
// host is told by an error. Host and worker share memory for what is bulk, and a local socket for the rest; no network.
package sidecar

import "time"

// Options of a worker.
type Options struct {
	Command []string      // the worker's command line without its own flags: {"/path/gpupipe", "worker"}
	Env     []string      // added to the worker's environment
	Device  string        // what the worker opens: "vulkan:0"; "" is its default
	Silence time.Duration // the watchdog's: the longest that a worker with work may show no progress; 0: a minute
	Setting string        // what its host's user sets Silence by, for the watchdog's errors; "": nothing
}

// UsageError is Work's where it was given what it cannot serve with: no token, a bad path. Nothing was done then.
type UsageError struct{ Cause error }

func (e *UsageError) Error() string { return e.Cause.Error() }
func (e *UsageError) Unwrap() error { return e.Cause }

func (o Options) silence() time.Duration {
	if o.Silence <= 0 {
		return time.Minute
	}
	return min(o.Silence, 1000*time.Hour)
}

// beat is how often a worker shows that it is alive, and how often the host looks.
func beat(silence time.Duration) time.Duration {
	return min(max(silence/8, 5*time.Millisecond), time.Second)
}
