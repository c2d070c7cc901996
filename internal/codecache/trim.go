package codecache

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	trimMark    = ".trimmed" // the file whose time is the time of the last trim
	useInterval = time.Hour  // how exactly the time of the last use is known
	blockBytes  = 4 << 10    // a file takes a multiple of it on disk
)

// Use is Read, and marks the file as used for Trim.
func Use(path string) []byte {
	data := Read(path)
	if data == nil {
		return nil
	}
	now := time.Now()
	if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > useInterval {
		_ = os.Chtimes(path, now, now) // else it is only removed sooner
	}
	return data
}

// Trim keeps the files of Write in a folder below limit bytes: if they have more, it removes the files that were not
// used for the longest time, until they have three quarters. It does so at most once an hour, in all processes
// together. A process that looks for a removed file does not find it, as if it had never been written.
func Trim(dir string, limit int64) {
	if mark := filepath.Join(dir, trimMark); !marked(mark) && setMark(mark) {
		trim(dir, limit)
	}
}

func trim(dir string, limit int64) {
	type file struct {
		path  string
		bytes int64
		used  time.Time
	}
	var files []file
	var total int64
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		f := file{filepath.Join(dir, e.Name()), (info.Size() + blockBytes - 1) / blockBytes * blockBytes, info.ModTime()}
		files, total = append(files, f), total+f.bytes
	}
	if total <= limit {
		return
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if total <= limit/4*3 {
			return
		}
		if os.Remove(f.path) == nil {
			total -= f.bytes
		}
	}
}
