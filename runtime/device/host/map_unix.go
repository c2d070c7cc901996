//go:build unix

package host

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map returns a mapping of size zero bytes whose address is a multiple of alignment, a power of two.
func Map(size, alignment int64) (*Mapping, error) {
	length := size + max(0, alignment-int64(os.Getpagesize()))
	// A private mapping without a file: some drivers import nothing else.
	all, err := unix.Mmap(-1, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of memory: %w", length, err)
	}
	at := -int64(uintptr(unsafe.Pointer(&all[0]))) & (alignment - 1)
	return &Mapping{Bytes: all[at : at+size : at+size], all: all}, nil
}

// Unmap returns the memory to the system, once. Any later access, also by a device, crashes the process.
func (m *Mapping) Unmap() {
	if err := unix.Munmap(m.all); err != nil {
		panic(fmt.Sprintf("host: unmapping %d bytes of memory: %v", len(m.all), err))
	}
}
