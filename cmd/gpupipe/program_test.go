package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A script that has to start the program, as in the archive for bare machines, is what starts it again.
func TestProgramOfAScript(t *testing.T) {
	t.Setenv("GPUPIPE_PROGRAM", "/opt/gpupipe/gpupipe")
	program, err := thisProgram()
	require.NoError(t, err)
	assert.Equal(t, "/opt/gpupipe/gpupipe", program)
}
