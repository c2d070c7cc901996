package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// A run whose program was removed, as by building it anew, starts workers all the same.
func TestWorkersOfARemovedProgram(t *testing.T) {
	dir := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	program := dir + "/gpupipe"
	require.NoError(t, os.WriteFile(program, self, 0o700))
	cmd := exec.Command(program, "train", small(t, dir), "--device", "null", "--set", "pipeline.isolate=process")
	cmd.Env = append(os.Environ(), "GPUPIPE_TEST_COMMAND=removed") // see TestMain
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "step 12/12")
	assert.NoFileExists(t, program)
}

// A device that hangs is lost after the timeout of the config, and the error names the key to set.
func TestWorkerHangs(t *testing.T) {
	t.Setenv("GPUPIPE_TEST_COMMAND", "1")
	a := &app{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
	dev, err := a.openWorker("null", time.Second)
	require.NoError(t, err)
	worker := dev.(interface{ Process() *os.Process }).Process()
	require.NoError(t, worker.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { // a signal takes its time
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", worker.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, time.Hour, time.Millisecond)
	err = dev.Sync()
	require.ErrorIs(t, err, device.ErrLost)
	assert.Regexp(t, `worker null \(pid \d+\) sent nothing for 1(\.\d+)?s, and was killed`, err.Error())
	require.NoError(t, dev.Close())
}
