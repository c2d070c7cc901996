package codecache

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// LockPrefix begins the names of files that processes lock while they compile.
const LockPrefix = ".lock-"

const (
	sweepMark = ".swept" // the file whose time is the time of the last sweep of a folder of many files
	manyFiles = 1000     // take a millisecond to read, and each device that is opened sweeps a cache
)

// sweep removes the temporary files and the locks in a folder that killed processes left. In a folder of many files it
// does so at most once an hour, in all processes together.
func sweep(dir string) {
	mark := filepath.Join(dir, sweepMark)
	if marked(mark) {
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if (strings.HasPrefix(e.Name(), temporary) || strings.HasPrefix(e.Name(), LockPrefix)) && abandoned(e) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	if len(entries) > manyFiles {
		setMark(mark)
	}
}

// marked reports whether setMark was called within the last hour.
func marked(mark string) bool {
	info, err := os.Stat(mark)
	return err == nil && time.Since(info.ModTime()) < time.Hour
}

// setMark reports whether it could: a disk may be full, or a folder only be read.
func setMark(mark string) bool {
	if os.WriteFile(mark, nil, 0o600) != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(mark, now, now)
	return true
}

// abandoned reports whether a file is so old that no process can still be writing it.
func abandoned(e fs.DirEntry) bool {
	info, err := e.Info()
	return err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > 24*time.Hour
}
