package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs/sweep"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// smallSweep is a sweep of the config that small writes, in dir/sweep.
func smallSweep(t *testing.T, dir, text string) string {
	t.Helper()
	small(t, dir)
	path := filepath.Join(dir, "sweep.yaml")
	require.NoError(t, os.WriteFile(path, []byte("base: c.yaml\n"+text+"dir: "+filepath.Join(dir, "sweep")+"\n"), 0o666))
	return path
}

const smallHalving = `search: halving
keys:
  optimizer.lr: {min: 1e-3, max: 1e-1, log: true}
  optimizer.name: [muon, adamw]
runs: 6
halving: {factor: 2, min_steps: 3}
`

// sweepEvents counts the lines of --json by their event.
func sweepEvents(t *testing.T, out string) (events map[string]int, report sweep.Report) {
	t.Helper()
	events = map[string]int{}
	for line := range strings.Lines(out) {
		var e struct {
			Event  string
			Report sweep.Report
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		events[e.Event]++
		report = e.Report
	}
	return events, report
}

func TestSweepOnTheNullDevice(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	s := smallSweep(t, dir, smallHalving)
	code, out, errs := command("sweep", s, "--dry-run")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, ", to step 3\n")
	assert.Contains(t, out, "\n6 runs, 0 of them done; then at most 4 more, of the best trials to later steps: at most 10 in all\n")
	assert.NoDirExists(t, filepath.Join(dir, "sweep"))

	code, out, errs = command("sweep", s, "--device", "null:0,null:1", "--json")
	require.Equal(t, exitOK, code, errs)
	events, rep := sweepEvents(t, out)
	assert.Equal(t, map[string]int{"run": 10, "report": 1}, events)
	assert.Equal(t, []int{3, 6, 12}, rep.Rungs)
	assert.Len(t, rep.Trials, 6)
	used := map[string]bool{}
	for _, trial := range rep.Trials {
		c, err := config.Load(filepath.Join(trial.Dirs[0], "config.yaml"), nil)
		require.NoError(t, err)
		used[c.Pipeline.Devices[0]] = true
	}
	assert.Equal(t, map[string]bool{"null:0": true, "null:1": true}, used)

	code, out, errs = command("sweep", s, "--device", "null")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "# Sweep of optimizer.lr, optimizer.name")
	assert.Contains(t, out, filepath.Join(dir, "sweep", "best.yaml"))
	assert.NotContains(t, out, "10/10", "nothing was run again")
	code, out, errs = command("train", filepath.Join(dir, "sweep", "best.yaml"), "--device", "null")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, filepath.Join(dir, "sweep", "best"))
}

// A sweep whose process is killed goes on with what is missing.
func TestSweepIsKilled(t *testing.T) {
	dir := t.TempDir()
	longer := strings.Replace(smallHalving, "min_steps: 3", "min_steps: 75", 1) + "set: {train.steps: 300, train.save_every: 7}\n"
	args := []string{"sweep", smallSweep(t, dir, longer), "--device", "null", "--json"}
	cmd, lines := start(t, args...)
	for range 2 { // runs that have ended
		require.True(t, lines.Scan())
	}
	require.NoError(t, cmd.Process.Kill())
	assert.Error(t, cmd.Wait())
	code, out, errs := command(append(args, "--dry-run")...)
	require.Equal(t, exitOK, code, errs)
	var p struct{ Ended []any }
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	assert.GreaterOrEqual(t, len(p.Ended), 2)
	code, out, errs = command(args...)
	require.Equal(t, exitOK, code, errs)
	events, rep := sweepEvents(t, out)
	assert.Equal(t, 10-len(p.Ended), events["run"])
	assert.NotNil(t, rep.Best)
}

func TestSweepMistakes(t *testing.T) {
	dir := t.TempDir()
	s := smallSweep(t, dir, "keys: {optimizer.lr: [0.1]}\n")
	for want, args := range map[string][]string{
		"no such file":                        {"sweep", filepath.Join(dir, "none.yaml")},
		"jobs: found 0":                       {"sweep", s, "--jobs", "0"},
		"--device: found null twice":          {"sweep", s, "--device", "null", "--device", "null"},
		"unknown backend, expected":           {"sweep", s, "--device", "cuda:0"},
		"c.yaml:1: model: unknown key":        {"sweep", filepath.Join(dir, "c.yaml")},
		"no trial has a score; the first (":   {"sweep", s, "--device", "null", "--set", "data.train=[none.txt]"},
		"--steps: found 3, expected an integ": {"lr-range", filepath.Join(dir, "c.yaml"), "--steps", "3"},
		"none.yaml":                           {"lr-range", filepath.Join(dir, "none.yaml")},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want, args)
	}
}

func TestRateRangeOnTheNullDevice(t *testing.T) {
	dir := t.TempDir()
	c, out := small(t, dir), filepath.Join(dir, "range")
	code, text, errs := command("lr-range", c, "--device", "null", "--steps", "20", "--out", out)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, text, "suggested      optimizer.lr ")
	assert.Contains(t, text, "the loss hardly falls")
	assert.Contains(t, text, "optimizer.adamw.lr was 0.5 times optimizer.lr at every step")
	code, text, errs = command("lr-range", c, "--device", "null", "--steps", "20", "--out", out, "--json")
	require.Equal(t, exitOK, code, errs)
	events, _ := sweepEvents(t, text)
	assert.Equal(t, map[string]int{"step": 20, "result": 1}, events)
	assert.NoDirExists(t, filepath.Join(dir, "run"))
}

func TestTheExampleIsASweep(t *testing.T) {
	t.Chdir("../..")
	s, err := sweep.Load("examples/learning-rates/sweep.yaml", nil)
	require.NoError(t, err)
	assert.Len(t, s.Trials, 12)
	assert.Equal(t, []int{15, 45}, s.Rungs)
}
