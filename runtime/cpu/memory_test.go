//go:build linux && cgo

package cpu

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMemory(t *testing.T) {
	const size, buffers = 3<<20 + 5, 30 // two slabs
	var m memory
	var slabs []*slab
	var all [][]byte
	var free []func()
	for i := range buffers {
		b, f, err := m.alloc(size)
		require.NoError(t, err)
		require.Len(t, b, size)
		require.Equal(t, size, cap(b), "no access beyond the end")
		assert.True(t, bytes.Equal(make([]byte, size), b))
		copy(b, bytes.Repeat([]byte{byte(i + 1)}, size))
		all, free = append(all, b), append(free, f)
		if len(slabs) == 0 || slabs[len(slabs)-1] != m.current {
			slabs = append(slabs, m.current)
		}
	}
	require.Len(t, slabs, 2)
	for i, b := range all {
		assert.Equal(t, size, bytes.Count(b, []byte{byte(i + 1)}), "buffers overlap")
	}
	for i := 1; i < buffers-1; i++ {
		free[i]()
	}
	assert.Equal(t, []int{1, 1}, []int{slabs[0].live, slabs[1].live})
	resident := make([]byte, size/os.Getpagesize())
	require.NoError(t, mincore(all[1], resident))
	assert.Zero(t, bytes.Count(resident, []byte{1}), "pages of a freed buffer stay")
	require.NoError(t, mincore(all[0], resident))
	assert.Equal(t, len(resident), bytes.Count(resident, []byte{1}))

	free[buffers-1]()
	assert.Nil(t, m.current, "an empty slab is unmapped")
	b, f, err := m.alloc(maxShare + 1)
	require.NoError(t, err)
	require.Len(t, b, maxShare+1)
	assert.Nil(t, m.current, "a large buffer has a mapping of its own")
	f()
	free[0]()
	assert.Zero(t, slabs[0].live)
	_, _, err = m.alloc(1 << 60)
	assert.ErrorContains(t, err, "cannot allocate memory")
}

// mincore stores which of the first pages of b are resident.
func mincore(b, resident []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(resident)*os.Getpagesize()),
		uintptr(unsafe.Pointer(&resident[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
