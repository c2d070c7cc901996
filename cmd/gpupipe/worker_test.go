package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// A device in a process of this program tells of itself what it would here.
func TestWorker(t *testing.T) {
	t.Setenv("GPUPIPE_TEST_COMMAND", "1") // see TestMain
	here, err := openDevice("null:3")
	require.NoError(t, err)
	there, err := openWorker("null:3")
	require.NoError(t, err)
	assert.Equal(t, here.Info(), there.Info())
	assert.Equal(t, here.Limits(), there.Limits())
	b, err := there.Alloc("b", 1024)
	require.NoError(t, err)
	require.NoError(t, there.Write(b, 0, make([]byte, 1024)))
	require.NoError(t, there.Sync())
	require.NoError(t, there.Close())
	require.ErrorIs(t, there.Sync(), device.ErrClosed)

	_, err = openWorker("cuda:0")
	require.ErrorContains(t, err, `device "cuda:0": no such backend`)
	_, err = openWorker("--socket=x")
	require.ErrorContains(t, err, `device "--socket=x": no such backend`)
	code, _, errs := command("worker")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "missing flags: --socket")
}

// With pipeline.isolate: process the devices of a run are in processes of this program.
func TestTrainInProcesses(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	train := func() (int, string, string) {
		return command("train", c, "--device", "null", "--set", "pipeline={isolate: process, stages: 2, restarts: 1}", "--set", "pipeline.devices=[null]")
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
