//go:build unix

package sidecar

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	ringBytes = 8 << 20  // of each ring
	maxRing   = 64 << 20 // bytes that a worker accepts
)

// memory is shared by host and worker: a ring of data for the worker, followed by one of data for the host.
type memory struct {
	all, up, down []byte
}

// newMemory makes shared memory, and returns the unnamed file behind it.
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

// mapMemory maps a file. On systems that can promise it, the size of the file cannot change any more.
func mapMemory(f *os.File, up, down int64) (*memory, error) {
	if up < 4096 || down < 4096 || up > maxRing || down > maxRing || up%4096 != 0 || down%4096 != 0 {
		return nil, fmt.Errorf("shared memory: found rings of %d and %d bytes, expected multiples of 4096 up to %d", up, down, maxRing)
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != up+down) {
		err = fmt.Errorf("found %v of %d bytes, expected a file of %d", st.Mode().Type(), st.Size(), up+down)
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

// close unmaps the memory, which must no longer be used.
func (m *memory) close() error { return unix.Munmap(m.all) }

// piece returns a range of a ring, or an error if it lies outside.
func piece(ring []byte, at, n int64) ([]byte, error) {
	if size := int64(len(ring)); at < 0 || n < 0 || n > size || at > size-n {
		return nil, fmt.Errorf("found %d bytes at %d, expected them within a ring of %d", n, at, size)
	}
	return ring[at : at+n], nil
}
