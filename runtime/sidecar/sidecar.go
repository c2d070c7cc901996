// Package sidecar is a device in a process of its own. A driver that crashes or hangs there ends that process only, and
// the host gets an error. Host and worker share memory for bulk data, and use a local socket for the rest; there is no
// network.
//
// On the host, Open starts a worker. A Device checks calls and turns them into commands, and a connection sends the
// commands and receives the worker's events. A watchdog kills a worker that makes no progress. In the worker, Work
// accepts its host and carries out the commands in order on a device of another backend.
package sidecar

import "time"

// Options of a worker.
type Options struct {
	Command []string      // the worker's command line without its own flags: {"/path/gpupipe", "worker"}
	Env     []string      // added to the worker's environment
	Device  string        // what the worker opens: "vulkan:0"; "" is its default
	Silence time.Duration // the longest that a worker with work may show no progress; 0: a minute
	Setting string        // the setting that the user changes Silence by, named in the watchdog's errors; "": none
}

// UsageError is Work's error for input with which it cannot serve: no token, or a bad path. Nothing was done then.
type UsageError struct{ Cause error }

func (e *UsageError) Error() string { return e.Cause.Error() }
func (e *UsageError) Unwrap() error { return e.Cause }

func (o Options) silence() time.Duration {
	if o.Silence <= 0 {
		return time.Minute
	}
	return min(o.Silence, 1000*time.Hour)
}

// beat is how often a worker shows that it is alive, and how often the host checks it.
func beat(silence time.Duration) time.Duration {
	return min(max(silence/8, 5*time.Millisecond), time.Second)
}
