package contract

import (
	"encoding/binary"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Load loads a program, and fails the test if that fails.
func Load(t testing.TB, d device.Device, p *device.Program) device.Loaded {
	t.Helper()
	l, err := d.Load(p)
	require.NoError(t, err)
	return l
}

// Read reads n bytes of b at offset, and fails the test if that fails.
func Read(t testing.TB, d device.Device, b device.Buffer, offset, n int64) []byte {
	t.Helper()
	r, err := d.Read(b, offset, n)
	require.NoError(t, err)
	data, err := r.Wait()
	require.NoError(t, err)
	return data
}

// Words returns little-endian data as u32 values.
func Words(data []byte) []uint32 {
	out := make([]uint32, len(data)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return out
}

// Pattern returns n bytes that depend on seed.
func Pattern(n, seed int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*31 + i>>8 + seed)
	}
	return data
}

// Increments returns a program of n dispatches that each add one to the first 64 words of b.
func Increments(b device.Buffer, n int) *device.Program {
	p := &device.Program{Label: "increments", Shaders: []device.Shader{Increment(1)}}
	for range n {
		p.Commands = append(p.Commands, device.Command{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}})
	}
	return p
}

// Lost checks that every operation of a lost device reports the loss, and that the device can be closed. want is the
// error of Run for l, a program on b.
func Lost(t *testing.T, d device.Device, b device.Buffer, l device.Loaded, want string) {
	t.Helper()
	_, err := d.Alloc("c", 4)
	assert.ErrorIs(t, err, device.ErrLost)
	assert.EqualError(t, d.Run(l), want)
	assert.ErrorIs(t, d.Write(b, 0, make([]byte, 4)), device.ErrLost)
	_, err = d.Read(b, 0, 4)
	assert.ErrorIs(t, err, device.ErrLost)
	_, err = d.Load(Increments(b, 2))
	assert.ErrorIs(t, err, device.ErrLost)
	assert.ErrorIs(t, d.Sync(), device.ErrLost)
	b.Release()
	l.Release()
	require.NoError(t, d.Close())
	assert.ErrorIs(t, d.Sync(), device.ErrClosed)
}
