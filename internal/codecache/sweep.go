package codecache

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Sweep removes the temporary files in a folder with the given prefix that killed processes left.
func Sweep(dir, prefix string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && abandoned(e) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// abandoned reports whether a file is so old that no process can still be writing it.
func abandoned(e fs.DirEntry) bool {
	info, err := e.Info()
	return err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > 24*time.Hour
}
