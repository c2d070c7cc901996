//go:build !unix

package chromium

import "os/exec"

func group(*exec.Cmd) {}

// kill kills a browser. Without process groups its children end when they notice.
func kill(cmd *exec.Cmd) { cmd.Process.Kill() }
