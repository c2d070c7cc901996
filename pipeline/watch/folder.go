package watch

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxDepth is how far below a folder runs are looked for.
	maxDepth = 4
	// maxEntries bounds the search for runs in a folder.
	maxEntries = 50_000
)

// folder is a folder that holds runs, or is one.
type folder struct {
	path  string
	label string // begins the names of its runs
	root  *os.Root
}

// open opens the folder, again if it was replaced. It reports whether it was replaced.
func (f *folder) open() (replaced bool, err error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return f.close(), err
	}
	if f.root != nil {
		if now, err := f.root.Stat("."); err == nil && os.SameFile(now, info) {
			return false, nil
		}
	}
	replaced = f.close()
	f.root, err = os.OpenRoot(f.path)
	return replaced, err
}

// close reports whether the folder was open.
func (f *folder) close() bool {
	if f.root == nil {
		return false
	}
	f.root.Close()
	f.root = nil
	return true
}

// errEnough ends a search.
var errEnough = errors.New("enough entries")

// runs lists the folders with measurements, relative to the folder. It follows no links, and does not look into hidden
// folders and checkpoints.
func (f *folder) runs() (dirs []string) {
	entries := 0
	_ = fs.WalkDir(f.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil { // a folder that cannot be read, or that was just removed
			return fs.SkipDir
		}
		if entries++; entries > maxEntries {
			return errEnough
		}
		switch {
		case !entry.IsDir():
			if path.Base(name) == metricsFile {
				dirs = append(dirs, path.Dir(name))
			}
		case name == ".":
		case slices.Contains(notRuns, entry.Name()), strings.HasPrefix(entry.Name(), "."), strings.Count(name, "/") >= maxDepth:
			return fs.SkipDir
		}
		return nil
	})
	return dirs
}

// name is the name of a run for people and for the page: always valid UTF-8.
func (f *folder) name(dir string) string {
	name := path.Join(filepath.ToSlash(f.label), dir)
	if !utf8.ValidString(name) {
		name = strings.ToValidUTF8(name, "�")
	}
	return name
}
