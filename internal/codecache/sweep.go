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

const sweepMark = ".swept" // the file whose time is the time of the last sweep

// sweep removes the temporary files and the locks in a folder that killed processes left, at most once an hour.
func sweep(dir string) {
	if !due(filepath.Join(dir, sweepMark)) {
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if (strings.HasPrefix(e.Name(), temporary) || strings.HasPrefix(e.Name(), LockPrefix)) && abandoned(e) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// due reports whether an hour has passed since it last reported so for a mark, in all processes together. A folder
// with ten thousand files takes long to read, and processes open caches often.
func due(mark string) bool {
	if info, err := os.Stat(mark); err == nil && time.Since(info.ModTime()) < time.Hour {
		return false
	}
	if os.WriteFile(mark, nil, 0o600) != nil {
		return false // a full disk, or a folder that may only be read
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
