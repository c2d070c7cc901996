//go:build unix

package sidecar

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// beHost opens a worker, has it work, says its number and waits.
func beHost() {
	o := options(os.Getenv("SIDECAR_TEST_DEVICE"))
	d, err := Open(o)
	if err != nil {
		panic(err)
	}
	b, err := d.Alloc("b", 1024)
	if err != nil {
		panic(err)
	}
	l, err := d.Load(contract.Increments(b, 1))
	if err != nil {
		panic(err)
	}
	if err := d.Run(l); err != nil {
		panic(err)
	}
	fmt.Println(d.Process().Pid)
	select {}
}

// A worker ends when its host ends, for whatever reason and whatever the worker is doing.
func TestHostIsKilled(t *testing.T) {
	for name, stop := range map[string]bool{"null": false, "hangs run": false, "slow 1h": false, "closes-never": false, "null 0": true} {
		t.Run(fmt.Sprint(name, stop), func(t *testing.T) {
			host := exec.Command(os.Args[0])
			host.Env = append(os.Environ(), role+"=host", "SIDECAR_TEST_DEVICE="+name)
			host.Stderr = os.Stderr
			out, err := host.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, host.Start())
			var worker int
			_, err = fmt.Fscan(bufio.NewReader(out), &worker)
			require.NoError(t, err)
			if stop {
				if _, err := os.Stat("/proc/self"); err != nil {
					t.Log("only Linux ends stopped workers")
					require.NoError(t, syscall.Kill(worker, syscall.SIGKILL))
				}
				require.NoError(t, syscall.Kill(worker, syscall.SIGSTOP))
			}
			require.NoError(t, host.Process.Kill())
			_ = host.Wait()
			assert.Eventually(t, func() bool { return gone(worker) }, time.Hour, 20*time.Millisecond)
		})
	}
}

// gone reports whether a process has ended. Its new parent may be slow to wait for it.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		var n int
		var name, state string
		fmt.Sscan(string(b), &n, &name, &state)
		return state == "Z"
	}
	return syscall.Kill(pid, 0) != nil
}
