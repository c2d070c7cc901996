package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
