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
	code, _, errs := command("worker")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "missing flags: --socket")
}
