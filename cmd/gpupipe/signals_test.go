//go:build unix

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Only a second Ctrl-C that does not come with the first quits at once.
func TestStopper(t *testing.T) {
	type signal struct {
		sig    os.Signal
		millis int
	}
	const INT, TERM, HUP = syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP
	for _, c := range []struct {
		signals []signal
		quits   bool // at the last one
	}{
		{[]signal{{INT, 0}}, false},
		{[]signal{{INT, 0}, {INT, 50}}, false},
		{[]signal{{INT, 0}, {INT, 600}, {INT, 1100}}, true},
		{[]signal{{INT, 0}, {INT, 1000}}, true},
		{[]signal{{HUP, 0}, {HUP, 50}, {HUP, 5000}, {TERM, 9000}, {TERM, 99000}}, false},
		{[]signal{{TERM, 0}, {INT, 5000}}, false},
		{[]signal{{INT, 0}, {HUP, 5000}, {TERM, 6000}}, false},
		{[]signal{{TERM, 0}, {INT, 5000}, {INT, 7000}}, true},
	} {
		var s stopper
		for i, x := range c.signals {
			_, quits := s.take(x.sig, time.Unix(1000, 0).Add(time.Duration(x.millis)*time.Millisecond))
			assert.Equal(t, c.quits && i == len(c.signals)-1, quits, "%v at signal %d", c.signals, i)
		}
	}
}

func TestSignalsThatSave(t *testing.T) {
	var saves atomic.Int64
	ctx, stop := handleSignals(io.Discard, &saves)
	defer stop()
	for i := range 3 {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
		require.Eventually(t, func() bool { return saves.Load() > int64(i) }, time.Hour, time.Millisecond)
	}
	assert.NoError(t, ctx.Err())
}

// refusing fails every write with an error.
type refusing struct {
	err    error
	writes int
}

func (r *refusing) Write([]byte) (int, error) {
	r.writes++
	return 0, r.err
}

func TestOutputWithoutReader(t *testing.T) {
	for _, err := range []error{syscall.EPIPE, syscall.EIO, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}} {
		to := &refusing{err: err}
		a := &app{ctx: t.Context(), stdout: &output{to: to}, stderr: io.Discard}
		assert.Equal(t, exitOK, a.run([]string{"config"}), err)
		assert.Equal(t, 1, to.writes, "what follows is dropped")
		assert.True(t, a.unread())
	}
	full := &refusing{err: syscall.ENOSPC}
	a := &app{ctx: t.Context(), stdout: &output{to: full}, stderr: io.Discard}
	assert.Equal(t, exitFailure, a.run([]string{"config"}), "a full disk is no mistake in the input")
	assert.ErrorIs(t, a.failed, syscall.ENOSPC)
}

// The reader of a run's output goes away, and the run is told to stop twice: it saves.
func TestTrainWithoutReader(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(self, "train", small(t, dir), "--device", "null", "--json", "--set",
		"train={steps: 100000000, save_every: 0, eval_every: 0, batch_size: 4}")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "GPUPIPE_TEST_COMMAND=1"), w, w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	until(t, bufio.NewScanner(r), `"step":7`)
	require.NoError(t, r.Close())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		require.ErrorIs(t, err, os.ErrProcessDone)
	}
	require.Error(t, cmd.Wait())
	assert.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode())
	kept, err := filepath.Glob(filepath.Join(dir, "run", "checkpoints", "step-*"))
	require.NoError(t, err)
	assert.Len(t, kept, 1)
}
