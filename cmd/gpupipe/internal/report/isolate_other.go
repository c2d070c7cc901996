//go:build !unix

package report

import "os/exec"

// isolate does nothing: a command alone is killed, not the processes that it started.
func isolate(*exec.Cmd) {}
