package codecache

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Sweep removes the temporary files in a folder, whose names begin so, that processes left which were killed.
func Sweep(dir, prefix string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && forgotten(e) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// forgotten tells whether a file is so old that nobody can be writing it still.
func forgotten(e fs.DirEntry) bool {
	info, err := e.Info()
	return err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > 24*time.Hour
}
