package main

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// A device in a worker process has the properties that it has in this process.
func TestWorker(t *testing.T) {
	t.Setenv("GPUPIPE_TEST_COMMAND", "1") // see TestMain
	a := &app{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
	here, err := a.openDevice("null:3")
	require.NoError(t, err)
	there, err := a.openWorker("null:3", time.Minute)
	require.NoError(t, err)
	assert.Equal(t, here.Info(), there.Info())
	assert.Equal(t, here.Limits(), there.Limits())
	b, err := there.Alloc("b", 1024)
	require.NoError(t, err)
	require.NoError(t, there.Write(b, 0, make([]byte, 1024)))
	require.NoError(t, there.Sync())
	require.NoError(t, there.Close())
	require.ErrorIs(t, there.Sync(), device.ErrClosed)

	_, err = a.openWorker("cuda:0", time.Minute)
	require.ErrorContains(t, err, `device "cuda:0": unknown backend`)
	_, err = a.openWorker("--socket=x", time.Minute)
	require.ErrorContains(t, err, `device "--socket=x": unknown backend`)
	code, _, errs := command("worker")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "missing flags: --socket")
}

// Bad input is the user's mistake here as elsewhere, and nothing is made.
func TestWorkerMistakes(t *testing.T) {
	t.Setenv("GPUPIPE_TEST_COMMAND", "1")
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	token := "0123456789abcdef\n"
	for _, c := range []struct{ stdin, device, socket, want string }{
		{"", "null", dir + "/a/socket", "no token on the standard input"},
		{"short\n", "null", dir + "/a/socket", "found a token of 5 bytes, expected at least 16"},
		{token, "cuda:0", dir + "/a/socket", `device "cuda:0": unknown backend`},
		{token, "vulkan:x", dir + "/a/socket", `device "vulkan:x": expected a name such as webgpu:0`},
		{token, "null", dir + "/socket", dir + ": found drwxr-xr-x, expected a folder that only its owner can enter, or none"},
		{token, "null", dir + "/a/b/socket", "no such file or directory"},
		{token, "null", "", "found an empty socket path"},
		{token, "null", dir + "/" + strings.Repeat("a", 110), "expected at most 103"},
	} {
		cmd := exec.Command(os.Args[0], "worker", "--device", c.device, "--socket", c.socket)
		cmd.Stdin = strings.NewReader(c.stdin)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, c.want)
		assert.Equal(t, exitMistake, cmd.ProcessState.ExitCode(), c.want)
		assert.Contains(t, string(out), c.want)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// With pipeline.isolate: process the devices of a run are in processes of this program.
func TestTrainInProcesses(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	train := func() (int, string, string) {
		return command("train", c, "--device", "null", "--set", "pipeline={isolate: process, stages: 2, restarts: 1}", "--set",
			"pipeline.devices=[null]")
	}
	t.Setenv("GPUPIPE_TEST_COMMAND", "dies")
	code, out, errs := train()
	assert.Equal(t, exitFailure, code)
	assert.Regexp(t, `worker null \(pid \d+\) was killed by SIGKILL; restarting from the beginning, attempt 1 of 1`, out)
	assert.Regexp(t, `failed: device lost 2 times in a row, and pipeline.restarts is 1: .* was killed by SIGKILL; .* was killed by SIGKILL; there is no checkpoint yet: with --resume the same command begins again`, errs)
	assert.NoDirExists(t, dir+"/run", "it never began")
	t.Setenv("GPUPIPE_TEST_COMMAND", "1")
	code, out, errs = train()
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "step 12/12")
}
