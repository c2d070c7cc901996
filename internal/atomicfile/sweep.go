package atomicfile

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// side is a path beside another: for the file that will take its place (tmp), or for the file that was there before
// (old).
func side(parent, base, kind string) string {
	return filepath.Join(parent, "."+base+"."+kind+"-"+rand.Text()[:10])
}

var ending = regexp.MustCompile(`^[A-Z2-7]{10}$`)

// sweep removes temporary files and folders that killed processes left beside a path. It removes only unlocked ones
// that are a day old: their makers have had time to lock them.
func sweep(parent, base, kind string) {
	entries, _ := os.ReadDir(filepath.Clean(parent))
	for _, e := range entries {
		end, found := strings.CutPrefix(e.Name(), "."+base+"."+kind+"-")
		if !found || !ending.MatchString(end) {
			continue
		}
		path := filepath.Join(parent, e.Name())
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 24*time.Hour && !held(path) {
			os.RemoveAll(path)
		}
	}
}
