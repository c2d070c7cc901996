package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gpupipe join ends with the exit code of gpupipe host, and says why.
func TestMembersEndAsTheHostDoes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, exitOK, "the run has finished"},
		{errInterrupted, exitInterrupted, "the run was stopped on the coordinator"},
		{fmt.Errorf("waiting: %w", context.Canceled), exitInterrupted, "the run was stopped on the coordinator"},
		{fmt.Errorf("step 5: the loss is NaN: %w", train.ErrDiverged), exitFailure,
			"the run has diverged: step 5: the loss is NaN: training stopped"},
		{usererror.Errorf("data.train: none"), exitMistake, "the coordinator has refused the run: data.train: none"},
		{errors.New("the device is lost"), exitFailure, "the run has failed on the coordinator: the device is lost"},
	} {
		host := &app{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
		assert.Equal(t, c.code, host.conclude(c.err))
		err := &control.EndedError{Ending: ending(c.err)}
		assert.EqualError(t, err, c.text)
		assert.Equal(t, c.code, host.conclude(ended(host, err)), c.text)
	}
	a := &app{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
	assert.Equal(t, exitFailure, a.conclude(ended(a, errors.New("the coordinator has not answered for 2m0s"))))
	assert.Equal(t, exitOK, a.conclude(ended(a, &control.EndedError{})), "an older coordinator says nothing")
}

// gpupipe host finds mistakes before it prints a token, as gpupipe train does, and leaves no files.
func TestHostChecksBeforeItInvites(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	run := filepath.Join(dir, "run")
	wait := func(sets ...string) (int, string, string) { // the deadline ends a host that invites members
		args := []string{"host", c, "--listen", "127.0.0.1:0", "--address", "127.0.0.1", "--device", "null", "--wait", "1ms"}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return command(args...)
	}
	for set, want := range map[string]string{
		"data.train=nothere.txt":                             "nothere.txt",
		"model.seq_len=300000":                               "model.seq_len",
		"data.val=nothere.txt":                               "nothere.txt",
		"data.tokenizer=nothere.json":                        "nothere.json",
		"hooks=[{file: nothere.wasm, hook: build_loss}]":     "nothere.wasm",
		"init.from=nothere":                                  "nothere",
		"train.eval_tasks=[nothere.jsonl]":                   "nothere.jsonl",
		"pipeline.memory=1KiB":                               "does not fit",
		"run.dir=" + filepath.Join(dir, "text.txt", "below"): "run.dir",
	} {
		code, out, errs := wait(set)
		assert.Equal(t, exitMistake, code, "%s: %s", set, errs)
		assert.Contains(t, errs, want)
		assert.NotContains(t, out, "gp1.", set)
		assert.NoDirExists(t, run, set)
	}
	release, err := lock.Folder(mkdir(t, run))
	require.NoError(t, err)
	code, out, errs := wait()
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "is in use by another process")
	assert.NotContains(t, out, "gp1.")
	release()
	require.NoError(t, os.WriteFile(filepath.Join(run, "metrics.jsonl"), nil, 0o666))
	code, out, errs = wait()
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "holds a run already")
	assert.NotContains(t, out, "gp1.")
}

// Wrong flags are found before anything begins, and before a token is of use.
func TestMistakesInFlagsOfHostAndJoin(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	elsewhere := filepath.Join(dir, "elsewhere.yaml") // without run.dir
	require.NoError(t, os.WriteFile(elsewhere, []byte("model: {preset: tiny}\ndata: {train: "+filepath.Join(dir, "text.txt")+"}\n"), 0o666))
	token := "gp1.127.0.0.1:1." + strings.Repeat("A", 43) + "." + strings.Repeat("A", 22)
	for want, args := range map[string][]string{
		"--members: found -1, expected at least 0":          {"host", c, "--members=-1"},
		"--rejoin: found -1s, expected at least 0s":         {"host", c, "--rejoin=-1s"},
		"--lifetime: found 0s, expected a positive time":    {"host", c, "--lifetime=0s"},
		`--listen: address "here": missing port in address`: {"host", c, "--device", "null", "--listen", "here"},
		`--listen: address ":99999": found port 99999`:      {"host", c, "--device", "null", "--listen", ":99999"},
		"bind: address already in use; expected host:port":  {"host", c, "--device", "null", "--listen", taken.Addr().String()},
		`--device: device "cuda:0": unknown backend`:        {"join", token, "--device", "cuda:0"},
		"has no checkpoints: expected the folder of a run": {"host", "--set", "run.dir=" + mkdir(t, filepath.Join(dir, "empty")),
			"--from", "step-4", elsewhere},
	} {
		code, out, errs := command(args...)
		assert.Equal(t, exitMistake, code, "%v: %s", args, errs)
		assert.Contains(t, errs, want, args)
		assert.NotContains(t, out, "gp1.")
		assert.NoDirExists(t, filepath.Join(dir, "run"))
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o777))
	return dir
}
