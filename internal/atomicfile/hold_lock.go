//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// hold locks a file or folder for as long as it is open, or its process lives. Where the system has no locks nothing is
// swept.
func hold(f *os.File) { _ = lock(f) }

// holdFolder is hold of a folder, until it is released.
func holdFolder(dir string) (release func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	hold(f)
	return func() { f.Close() }
}

// held reports whether a process may be holding a file or folder.
func held(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	return lock(f) != nil
}

func lock(f *os.File) (err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return err
}
