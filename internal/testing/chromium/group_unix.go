//go:build unix

package chromium

import (
	"os/exec"
	"syscall"
)

// group starts a process in a group of its own, with its children.
func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// kill kills a process and its children.
func kill(cmd *exec.Cmd) { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
