package atomicfile

import (
	"os"
	"time"
)

// scanned is how long a file may be busy: virus scanners and indexers open files that were just written.
const scanned = 10 * time.Second

// Rename is os.Rename, and tries again for some seconds while a file is busy.
func Rename(from, to string) error {
	until := time.Now().Add(scanned)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := os.Rename(from, to)
		if !Busy(err) || isFolder(to) || time.Now().After(until) {
			return err
		}
		time.Sleep(pause)
	}
}

// isFolder reports whether a path is a folder. Where Rename finds one, Windows says that access is denied.
func isFolder(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}
