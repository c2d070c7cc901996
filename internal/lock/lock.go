// Package lock keeps two processes from writing to one folder.
package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/gofrs/flock"
)

const name = ".lock" // in the folder, for as long as it is locked

// ErrHeld is wrapped by Folder's error while another process, or another holder in this one, has the folder.
var ErrHeld = errors.New("in use by another process: wait for its end, stop it, or choose another folder")

// ErrUnsupported is wrapped by Folder's error if the file system has no locks.
var ErrUnsupported = errors.New("the file system has no locks: see to it that no other process writes there")

// Folder locks an existing folder. The system releases the lock when the process ends, however it ends; release does so
// earlier.
func Folder(dir string) (release func(), err error) {
	path := filepath.Join(dir, name)
	for {
		l := flock.New(path, flock.SetPermissions(0o666))
		ok, err := l.TryLock()
		var file *fs.PathError
		switch {
		case errors.As(err, &file):
			return nil, err
		case err != nil:
			l.Close()
			os.Remove(path)
			return nil, fmt.Errorf("%s: %w (%v)", dir, ErrUnsupported, err)
		case !ok:
			l.Close()
			return nil, fmt.Errorf("%s is %w", dir, ErrHeld)
		case current(l):
			return func() {
				os.Remove(path) // while it is held; a process that has opened it finds it removed and tries again
				l.Close()
				if runtime.GOOS == "windows" {
					os.Remove(path) // open files stay there, so nobody else has it open if this succeeds
				}
			}, nil
		}
		l.Close()
	}
}

// current reports whether a locked file is still the one in the folder. The previous holder may have removed it.
func current(l *flock.Flock) bool {
	mine, err := l.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(l.Path())
	return err == nil && os.SameFile(mine, there)
}
