//go:build unix

package report

import (
	"os/exec"
	"syscall"
)

// isolate gives a command a process group of its own, which is killed whole.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
