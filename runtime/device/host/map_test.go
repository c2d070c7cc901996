//go:build unix

package host

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMap(t *testing.T) {
	for _, alignment := range []int64{1, 4096, 65536, 1 << 21} {
		m, err := Map(3*alignment, alignment)
		require.NoError(t, err)
		require.Len(t, m.Bytes, int(3*alignment))
		assert.Zero(t, uintptr(unsafe.Pointer(&m.Bytes[0]))%uintptr(alignment))
		assert.True(t, bytes.Equal(make([]byte, 3*alignment), m.Bytes))
		copy(m.Bytes, bytes.Repeat([]byte{1}, len(m.Bytes)))
		m.Unmap()
		assert.Panics(t, m.Unmap)
	}
	_, err := Map(1<<60, 4096)
	require.ErrorContains(t, err, "mapping 1152921504606846976 bytes of memory: ")
	_, err = Map(0, 4096)
	assert.Error(t, err)
}
