//go:build unix

package chromium

import (
	"os/exec"
	"syscall"
)

// group gives a process a group of its own, which holds its children.
func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// kill ends a process and its children.
func kill(cmd *exec.Cmd) { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
