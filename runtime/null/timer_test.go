package null

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
)

func TestCommandsTakeNoTime(t *testing.T) {
	d := New(Options{})
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	l, err := d.Load(contract.Increments(b, 3))
	require.NoError(t, err)
	times, _ := contract.RunTimed(t, d, l)
	assert.Equal(t, make([]time.Duration, 3), times)
	assert.EqualValues(t, 3, d.Counts().Dispatches)
	require.NoError(t, d.Close())
	_, err = d.RunTimed(l)
	assert.ErrorIs(t, err, device.ErrClosed)
}
