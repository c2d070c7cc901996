//go:build linux && cgo

package cpu

import (
	"os"
	"sync"

	"github.com/gpupipe/gpupipe/runtime/device/host"
	"golang.org/x/sys/unix"
)

const (
	hugePage = 2 << 20  // bytes
	slabSize = 64 << 20 // bytes of address space
	maxShare = 8 << 20  // bytes of a buffer that shares a slab with others
)

// memory allocates the memory of buffers in huge pages, where the system has them: kernels that read a matrix once, or
// go through it by columns, spend much of their time on address translation otherwise. Small buffers share slabs,
// because a huge page is larger than most of them. A range of a slab is never used again, but its pages go back to the
// system, so that a slab costs address space only.
type memory struct {
	mu      sync.Mutex
	current *slab // nil: none
}

// slab is a mapping that buffers share. The memory's lock guards it.
type slab struct {
	mapping *host.Mapping
	used    int // bytes from the start
	live    int // buffers
}

// alloc returns zeros, and a function that gives them back to the system. Several goroutines may call both at once.
func (m *memory) alloc(size int64) (bytes []byte, free func(), err error) {
	if size > maxShare {
		mapping, err := mapHuge(size)
		if err != nil {
			return nil, nil, err
		}
		return mapping.Bytes, mapping.Unmap, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	page := os.Getpagesize()
	length := (int(size) + page - 1) / page * page
	if m.current == nil || m.current.used+length > slabSize {
		mapping, err := mapHuge(slabSize)
		if err != nil {
			return nil, nil, err
		}
		m.current = &slab{mapping: mapping}
	}
	s := m.current
	whole := s.mapping.Bytes[s.used : s.used+length]
	s.used += length
	s.live++
	return whole[:size:size], func() { m.free(s, whole) }, nil
}

// free gives pages back to the system: the whole slab if these were the last of it.
func (m *memory) free(s *slab, pages []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.live--; s.live > 0 {
		_ = unix.Madvise(pages, unix.MADV_DONTNEED) // does not fail for whole pages of a mapping
		return
	}
	if s == m.current {
		m.current = nil
	}
	s.mapping.Unmap()
}

// mapHuge maps zeros that lie in huge pages as far as they fill them.
func mapHuge(size int64) (*host.Mapping, error) {
	m, err := host.Map(size, hugePage)
	if err == nil {
		_ = unix.Madvise(m.Bytes, unix.MADV_HUGEPAGE) // without them it is only slower
	}
	return m, err
}
