//go:build unix

package sidecar

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	ringBytes = 8 << 20  // of each ring
	maxRing   = 64 << 20 // bytes that a worker takes
)

// memory is what host and worker share: a ring of data for the worker, and then one of data for the host.
type memory struct {
	all, up, down []byte
}

// newMemory makes it and the file that stands for it, which has no name.
func newMemory(up, down int64) (*memory, *os.File, error) {
	f, err := newShared()
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	if err = f.Truncate(up + down); err == nil {
		err = seal(f)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	m, err := mapMemory(f, up, down)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return m, f, nil
}

// mapMemory maps a file whose size cannot change any more, where the system can promise that.
func mapMemory(f *os.File, up, down int64) (*memory, error) {
	if up < 4096 || down < 4096 || up > maxRing || down > maxRing || up%4096 != 0 || down%4096 != 0 {
		return nil, fmt.Errorf("shared memory: rings of %d and %d bytes, expected multiples of 4096 up to %d", up, down, maxRing)
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != up+down) {
		err = fmt.Errorf("%v of %d bytes, expected a file of %d", st.Mode().Type(), st.Size(), up+down)
	}
	if err == nil {
		err = sealed(f)
	}
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	all, err := unix.Mmap(int(f.Fd()), 0, int(up+down), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return &memory{all: all, up: all[:up:up], down: all[up:]}, nil
}

// close gives it back. Nobody may use it any more.
func (m *memory) close() error { return unix.Munmap(m.all) }

// piece is a stretch of one of the rings, or an error where it lies outside.
func piece(ring []byte, at, n int64) ([]byte, error) {
	if size := int64(len(ring)); at < 0 || n < 0 || n > size || at > size-n {
		return nil, fmt.Errorf("%d bytes at %d of a ring of %d", n, at, size)
	}
	return ring[at : at+n], nil
}
