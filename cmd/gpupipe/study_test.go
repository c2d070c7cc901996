package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/gpupipe/gpupipe/pipeline/runs/study"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// smallGrid is a study of the config that small writes, in dir/study.
func smallGrid(t *testing.T, dir string, more ...string) string {
	t.Helper()
	small(t, dir)
	path := filepath.Join(dir, "grid.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`base: c.yaml
set: {train.steps: 3}
optimizers:
  adamw: {lrs: [0.001, 0.002]}
  muon: {lrs: [0.02]}
seeds: [1, 2]
dir: `+filepath.Join(dir, "study")+"\n"+strings.Join(more, "\n")), 0o666))
	return path
}

func TestStudyOnTheNullDevice(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	g := smallGrid(t, dir)
	code, out, errs := command("study", g, "--device", "null", "--dry-run")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "to do  adamw, sync, lr 0.001, seed 1\n")
	assert.Contains(t, out, "3 runs, 0 of them done; then at most 10 more, at the learning rates that these select: at most 13 in all")
	assert.NoDirExists(t, filepath.Join(dir, "study"))

	code, out, errs = command("study", g, "--device", "null", "--jobs", "2")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "13/13  ")
	assert.Contains(t, out, "muon, delay+error_feedback, lr 0.02, seed 2: validation loss 0.0000")
	assert.Contains(t, out, "| optimizer | lr    | sync ")
	assert.Contains(t, out, filepath.Join(dir, "study", "gaps.png"))
	assert.NotContains(t, out, "\r")

	code, out, errs = command("study", g, "--device", "null", "--dry-run")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "13 runs, 13 of them done\n")

	code, out, errs = command("study", g, "--device", "null", "--json", "--set", "train.steps=3")
	require.Equal(t, exitOK, code, errs)
	assert.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 1, "nothing was run again")
	var e struct {
		Event  string
		Report study.Report
	}
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	assert.Equal(t, "report", e.Event)
	assert.Len(t, e.Report.Cells, 6)
	assert.Len(t, e.Report.Runs, 13)
}

func TestStudyAsJSON(t *testing.T) {
	dir := t.TempDir()
	g := smallGrid(t, dir, "modes: [sync]")
	code, out, errs := command("study", g, "--device", "null", "--json", "--dry-run")
	require.Equal(t, exitOK, code, errs)
	var p plannedRuns[study.Run]
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	assert.Len(t, p.Waiting, 3)
	assert.Equal(t, 2, p.Later)
	code, out, errs = command("study", g, "--device", "null", "--json")
	require.Equal(t, exitOK, code, errs)
	events := map[string]int{}
	for line := range strings.Lines(out) {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		events[e["event"].(string)]++
	}
	assert.Equal(t, map[string]int{"run": 5, "report": 1}, events)
}

func TestStudyMistakes(t *testing.T) {
	dir := t.TempDir()
	g := smallGrid(t, dir)
	for want, args := range map[string][]string{
		"no such file":                    {"study", filepath.Join(dir, "none.yaml")},
		"jobs: found 0":                   {"study", g, "--jobs", "0"},
		"expected \"<grid>\"":             {"study"},
		"c.yaml:1: model: unknown key":    {"study", filepath.Join(dir, "c.yaml")},
		"--set optimizer.lr=1":            {"study", g, "--set", "optimizer.lr=1"},
		"unknown backend, expected":       {"study", g, "--device", "cuda:0"},
		"--set train.steps=0":             {"study", g, "--set", "train.steps=0"},
		"adamw, sync, lr 0.001, seed 1 (": {"study", g, "--set", "data.train=[none.txt]"},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want, args)
	}
	assert.NoDirExists(t, filepath.Join(dir, "study"), "nothing was written")
}

func TestStudyIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	a := &app{ctx: ctx, stdout: &out, stderr: &errs}
	assert.Equal(t, exitInterrupted, a.run([]string{"study", smallGrid(t, t.TempDir()), "--device", "null"}))
	assert.Contains(t, errs.String(), "stopped after 0 runs; the same command continues")
}

// On a terminal one line shows the runs under way. It fits, and is erased before anything else is written.
func TestStudyOnATerminal(t *testing.T) {
	tier.Rest(t)
	var out, errs bytes.Buffer
	a := &app{ctx: context.Background(), stdout: &out, stderr: &errs, stdoutColumns: func() int { return 60 }}
	require.Equal(t, exitOK, a.run([]string{"study", smallGrid(t, t.TempDir(), "modes: [sync]"), "--device", "null"}), errs.String())
	rewritten := strings.Split(out.String(), "\r\x1b[J")
	require.Greater(t, len(rewritten), 2)
	for _, text := range rewritten[:len(rewritten)-1] {
		assert.Less(t, table.Width(text[strings.LastIndexByte(text, '\n')+1:]), 60, text)
	}
}

func TestTheExampleIsAStudy(t *testing.T) {
	t.Chdir("../..")
	code, out, errs := command("study", "examples/one-step-delay/study.yaml", "--dry-run", "--set", "run.dir=x")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "run.dir is varied by the study", out)
	g, err := study.Load("examples/one-step-delay/study.yaml", nil)
	require.NoError(t, err)
	p, err := runs.Plan(g)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(p.Ended)+len(p.Waiting)+p.Later, 47)
	g, err = study.Load("examples/moe-tiny/study.yaml", nil)
	require.NoError(t, err)
	p, err = runs.Plan(g)
	require.NoError(t, err)
	assert.Equal(t, 21, len(p.Ended)+len(p.Waiting)+p.Later)
}
