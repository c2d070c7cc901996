//go:build linux && cgo

package cpu

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is the function of a kernel, in one of the loaded libraries.
type kernel unsafe.Pointer

// libraries are the loaded libraries, by their SHA-256. Kernels that were compiled together share one.
type libraries struct {
	mu     sync.Mutex
	loaded map[[sha256.Size]byte]unsafe.Pointer
}

// load loads a library from memory, unless it is loaded: what was checked is what runs, whatever happens to files.
// Systems without memory files, or where such files may not be executed, load it from a private file.
func (l *libraries) load(library []byte, symbol string) (kernel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := sha256.Sum256(library)
	handle := l.loaded[sum]
	if handle == nil {
		var inMemory, onDisk error
		if handle, inMemory = fromMemory(library); handle == nil {
			if handle, onDisk = fromFile(library); onDisk != nil {
				return nil, fmt.Errorf("the system does not load compiled code: %w; from a file: %w", inMemory, onDisk)
			}
		}
		if l.loaded == nil {
			l.loaded = map[[sha256.Size]byte]unsafe.Pointer{}
		}
		l.loaded[sum] = handle
	}
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	k := kernel(C.dlsym(handle, name))
	if k == nil {
		return nil, fmt.Errorf("the compiled library lacks %s", symbol)
	}
	return k, nil
}

// free unloads all libraries.
func (l *libraries) free() {
	for _, handle := range l.loaded {
		C.dlclose(handle)
	}
	clear(l.loaded)
}

const mfdExec = 0x10 // MFD_EXEC, since Linux 6.3

func fromMemory(library []byte) (unsafe.Pointer, error) {
	fd, err := unix.MemfdCreate("gpupipe-kernel", unix.MFD_CLOEXEC|mfdExec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("gpupipe-kernel", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memory file")
	defer f.Close()
	if _, err := f.Write(library); err != nil {
		return nil, err
	}
	return loadFile(memoryPath(fd))
}

var serial atomic.Uint32 // of the paths of memory files in this process

// memoryPath returns a path of an open file that no other call has returned. The loader takes two equal paths for one
// library, and the numbers of closed files come again.
func memoryPath(fd int) string {
	var path strings.Builder
	path.WriteString("/proc/self/fd")
	for n := serial.Add(1); n > 0; n >>= 1 {
		path.WriteString([]string{"/", "/."}[n&1])
	}
	fmt.Fprintf(&path, "/%d", fd)
	return path.String()
}

func fromFile(library []byte) (unsafe.Pointer, error) {
	f, err := os.CreateTemp("", "gpupipe-kernel-*.so") // only the user may access it
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(library)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return loadFile(f.Name())
}

func loadFile(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	handle := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		return nil, errors.New(C.GoString(C.dlerror()))
	}
	return handle, nil
}
