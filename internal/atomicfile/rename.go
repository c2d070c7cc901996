package atomicfile

import (
	"os"
	"time"
)

// scanned is how long a file may be busy: virus scanners and indexers open files that were just written.
const scanned = 10 * time.Second

// Rename is os.Rename, and tries again for some seconds while a file is busy.
func Rename(from, to string) error {
	return whileBusy(func() (final bool, err error) {
		if err = os.Rename(from, to); Busy(err) {
			st, missing := os.Lstat(to)
			final = missing == nil && st.IsDir() // which Windows calls a denied access
		}
		return final, err
	})
}

// removeAll is os.RemoveAll, and tries again for some seconds while a file is busy.
func removeAll(path string) error {
	return whileBusy(func() (bool, error) { return false, os.RemoveAll(path) })
}

// whileBusy calls do until its error is another one than Busy, or final.
func whileBusy(do func() (final bool, err error)) error {
	until := time.Now().Add(scanned)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		final, err := do()
		if !Busy(err) || final || time.Now().After(until) {
			return err
		}
		time.Sleep(pause)
	}
}
