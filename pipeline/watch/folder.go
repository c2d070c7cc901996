package watch

import (
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
	maxEntries = 1_000_000
)

// folder is a folder that holds runs, or is one.
type folder struct {
	path  string
	label string // begins the names of its runs
	root  *os.Root
	links map[string]*os.Root // linked folders below it, by path
}

// open opens the folder, again if it was replaced.
func (f *folder) open() error {
	info, err := os.Stat(f.path)
	if err != nil {
		f.close()
		return err
	}
	if f.root != nil {
		if now, err := f.root.Stat("."); err == nil && os.SameFile(now, info) {
			return nil
		}
	}
	f.close()
	f.root, err = os.OpenRoot(f.path)
	return err
}

func (f *folder) close() {
	if f.root == nil {
		return
	}
	for _, root := range f.links {
		root.Close()
	}
	f.root.Close()
	f.root, f.links = nil, nil
}

// found is a run folder: its place below a root, and its path.
type found struct {
	root      *os.Root
	dir, path string
}

// search is one search for runs in a folder.
type search struct {
	folder  *folder
	runs    map[string]found // by the path below the folder
	entries int              // left to look at
	above   []os.FileInfo    // folders that are being searched, from the outermost on
	links   map[string]bool  // that were seen
}

// runs lists the folders with measurements by their paths below the folder. It follows links to folders, and does not
// look into hidden folders, checkpoints and what a run has set aside.
func (f *folder) runs() map[string]found {
	s := search{folder: f, runs: map[string]found{}, entries: maxEntries, links: map[string]bool{}}
	s.look(f.root, ".", ".", 0)
	for name, root := range f.links {
		if !s.links[name] {
			root.Close()
			delete(f.links, name)
		}
	}
	return s.runs
}

// look looks for runs in a folder dir of a root, whose path below the searched folder is name.
func (s *search) look(root *os.Root, dir, name string, depth int) {
	info, err := root.Stat(dir)
	if err != nil {
		return
	}
	s.above = append(s.above, info)
	defer func() { s.above = s.above[:len(s.above)-1] }()
	entries, err := fs.ReadDir(root.FS(), dir)
	if err != nil { // a folder that cannot be read, or that was just removed
		return
	}
	isRun := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == metricsFile && !e.IsDir() })
	if isRun {
		s.runs[name] = found{root, dir, filepath.Join(s.folder.path, filepath.FromSlash(name))}
	}
	for _, e := range entries {
		if s.entries--; s.entries < 0 || depth == maxDepth {
			return
		}
		if slices.Contains(notRuns, e.Name()) || isRun && e.Name() == asideFolder || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		switch {
		case e.IsDir():
			s.look(root, path.Join(dir, e.Name()), path.Join(name, e.Name()), depth+1)
		case e.Type()&fs.ModeSymlink != 0:
			s.follow(path.Join(name, e.Name()), depth+1)
		}
	}
}

// follow looks for runs behind a link to a folder, unless the link leads into a circle.
func (s *search) follow(name string, depth int) {
	f := s.folder
	at := filepath.Join(f.path, filepath.FromSlash(name))
	info, err := os.Stat(at)
	if err != nil || !info.IsDir() || slices.ContainsFunc(s.above, func(a os.FileInfo) bool { return os.SameFile(a, info) }) {
		return
	}
	root := f.links[name]
	if root != nil {
		if now, err := root.Stat("."); err != nil || !os.SameFile(now, info) { // the link leads elsewhere now
			root.Close()
			root = nil
		}
	}
	if root == nil {
		if root, err = os.OpenRoot(at); err != nil {
			return
		}
		if f.links == nil {
			f.links = map[string]*os.Root{}
		}
		f.links[name] = root
	}
	s.links[name] = true
	s.look(root, ".", name, depth)
}

// name is the name of a run for people and for the page: always valid UTF-8.
func (f *folder) name(dir string) string {
	name := path.Join(filepath.ToSlash(f.label), dir)
	if !utf8.ValidString(name) {
		name = strings.ToValidUTF8(name, "�")
	}
	return name
}
