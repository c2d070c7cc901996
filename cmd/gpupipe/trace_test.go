package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of a run that was resumed the latest part is told of, and where the others are.
func TestTraceOfAResumedRun(t *testing.T) {
	dir := t.TempDir()
	c, run := small(t, dir), filepath.Join(dir, "run")
	train := func(args ...string) {
		code, _, errs := command(append([]string{"train", c, "--device", "null", "--no-tune"}, args...)...)
		require.Equal(t, exitOK, code, errs)
	}
	told := func(path string) string {
		code, out, errs := command("trace", path)
		require.Equal(t, exitOK, code, errs)
		return out
	}
	train("--set", "train.steps=4")
	assert.NotContains(t, told(run), "resumed")
	train("--resume")
	out := told(run)
	assert.Contains(t, out, filepath.Join(run, "trace.json")+": 8 batches\n")
	assert.Contains(t, out, "what came before is in "+filepath.Join(run, "trace.1.json")+"\n")
	assert.Contains(t, told(filepath.Join(run, "trace.1.json")), "trace.1.json: 4 batches\n")
	train("--resume")
	assert.Equal(t, out, told(run), "nothing was left to do")
}
