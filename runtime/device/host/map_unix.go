//go:build unix

package host

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map makes a mapping of size bytes, zeros, at a multiple of alignment, a power of two.
func Map(size, alignment int64) (*Mapping, error) {
	room := size + max(0, alignment-int64(os.Getpagesize()))
	// Private and of no file: some drivers import nothing else.
	all, err := unix.Mmap(-1, 0, int(room), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of memory: %w", room, err)
	}
	at := -int64(uintptr(unsafe.Pointer(&all[0]))) & (alignment - 1)
	return &Mapping{Bytes: all[at : at+size : at+size], all: all}, nil
}

// Unmap gives it back, once: from then on who touches it, a device included, crashes.
func (m *Mapping) Unmap() {
	if err := unix.Munmap(m.all); err != nil {
		panic(fmt.Sprintf("host: giving back %d bytes of memory: %v", len(m.all), err))
	}
}
