package atomicfile

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// side is a path beside another, for what is on its way there (tmp), or was there before (old).
func side(parent, base, kind string) string {
	return filepath.Join(parent, "."+base+"."+kind+"-"+rand.Text()[:10])
}

var ending = regexp.MustCompile(`^[A-Z2-7]{10}$`)

// sweep removes what processes left beside a path that were killed on its way there. It is nobody's if it is a day old, so that whoever made
// it has had the time to lock it, and is not locked.
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
