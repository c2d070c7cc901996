package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of a resumed run, the newest trace is summarized, and the one before it is named.
func TestTraceOfAResumedRun(t *testing.T) {
	dir := t.TempDir()
	c, run := small(t, dir), filepath.Join(dir, "run")
	train := func(args ...string) {
		code, _, errs := command(append([]string{"train", c, "--device", "null", "--no-tune"}, args...)...)
		require.Equal(t, exitOK, code, errs)
	}
	summary := func(path string) string {
		code, out, errs := command("trace", path)
		require.Equal(t, exitOK, code, errs)
		return out
	}
	train("--set", "train.steps=4")
	for _, want := range []string{"\nbusy      computing", "\nbubble    not busy", "\nF forward, B backward"} {
		assert.Contains(t, summary(run), want, "the legend")
	}
	assert.NotContains(t, summary(run), "resume")
	assert.Contains(t, summary(run), "mean age of the gradients: 0 steps\n")
	train("--resume")
	out := summary(run)
	assert.Contains(t, out, filepath.Join(run, "trace.json")+": 8 batches\n")
	assert.Contains(t, out, "the trace before it is "+filepath.Join(run, "trace.1.json")+"\n")
	assert.Contains(t, summary(filepath.Join(run, "trace.1.json")), "trace.1.json: 4 batches\n")
	train("--resume")
	assert.Equal(t, out, summary(run), "nothing was left to do")
}
