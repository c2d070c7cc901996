package data

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/userpath"
)

// Expand resolves files, globs, names of data sets in the Hub's cache, and folders that datasets saved to files, in the
// order given and by name within a glob. It expands ~ and environment variables. A name that matches nothing, is
// another folder or comes up twice is an error, and so is a file whose name or first bytes say that it holds no
// documents.
func Expand(patterns []string) ([]string, error) { return expand(patterns, false) }

// expand is Expand. If files may be missing, files of data sets of the Hub need not be there yet; readers check them.
func expand(patterns []string, mayMiss bool) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	for _, p := range patterns {
		matches, err := expandOne(p, mayMiss)
		if err != nil {
			return nil, err
		}
		for _, f := range matches {
			if seen[filepath.Clean(f)] {
				return nil, fmt.Errorf("%s: listed twice", f)
			}
			seen[filepath.Clean(f)] = true
			if !mayMiss || !hub.IsAddress(p) {
				if err := checkContent(f); err != nil {
					return nil, err
				}
			}
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("no file given")
	}
	return files, nil
}

func expandOne(p string, mayMiss bool) ([]string, error) {
	switch {
	case p == "":
		return nil, errors.New("an empty file name")
	case hub.IsAddress(p) && mayMiss:
		return hub.Places(p)
	case hub.IsAddress(p):
		return hub.Files(p)
	}
	p, err := userpath.Expand(p)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(p); err == nil && st.IsDir() {
		return savedFiles(p)
	} else if hint := hub.DataHint(p); errors.Is(err, fs.ErrNotExist) && hint != "" && !userpath.IsGlob(p) {
		return nil, fmt.Errorf("%s: no such file%s", p, hint)
	} else if err == nil || !userpath.IsGlob(p) {
		return []string{p}, nil
	}
	matches, err := glob(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	if len(matches) == 0 {
		return nil, fmt.Errorf("%s: no file matches%s", p, cmp.Or(hub.DataHint(p), literalHint(p)))
	}
	for _, m := range matches {
		if st, err := os.Stat(m); err == nil && st.IsDir() {
			return nil, fmt.Errorf("%s: matches the folder %s: expected files, or a glob such as %s", p, m, allTexts(m))
		}
	}
	return matches, nil
}

// allTexts is a glob of the texts in a folder.
func allTexts(dir string) string { return filepath.Join(userpath.Literal(dir), "*.txt") }

// literalHint says how to write a glob that names a folder whose own name looks like one; nothing if it names none.
func literalHint(glob string) string {
	for dir := filepath.Dir(glob); userpath.IsGlob(dir); dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.IsDir() && userpath.Literal(dir) != dir {
			return fmt.Sprintf(": the folder %s is written %s in a glob", dir, userpath.Literal(dir))
		}
	}
	return ""
}

// anyDepth is the element of a pattern that stands for any number of folders, as in Python's glob.
const anyDepth = "**"

// glob returns the sorted matches of a pattern.
func glob(pattern string) ([]string, error) {
	volume := filepath.VolumeName(pattern)
	elements := strings.Split(filepath.ToSlash(pattern[len(volume):]), "/")
	at := slices.Index(elements, anyDepth)
	if at < 0 {
		matches, err := filepath.Glob(pattern)
		slices.Sort(matches)
		return matches, err
	}
	heads := []string{volume + strings.Repeat("/", min(at, 1))} // of a pattern that begins with ** or /**
	if at > 1 || at == 1 && elements[0] != "" {
		var err error
		if heads, err = filepath.Glob(volume + filepath.FromSlash(strings.Join(elements[:at], "/"))); err != nil {
			return nil, err
		}
	}
	var matches []string
	for _, head := range heads {
		if err := globIn(head, elements[at:], nil, &matches); err != nil {
			return nil, err
		}
	}
	slices.Sort(matches)
	return slices.Compact(matches), nil
}

// globIn appends the files in a folder that match the elements of a pattern. above are the folders that it lies in.
// Folders that are hidden are in no **, and a link to a folder above is not followed.
func globIn(dir string, elements []string, above []fs.FileInfo, matches *[]string) error {
	st, err := os.Stat(filepath.Join(dir, "."))
	if err != nil || !st.IsDir() {
		return nil
	}
	if slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, st) }) && elements[0] == anyDepth {
		return nil
	}
	if elements[0] == anyDepth && len(elements) > 1 {
		if err := globIn(dir, elements[1:], nil, matches); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, "."))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		hidden := strings.HasPrefix(e.Name(), ".")
		switch {
		case elements[0] == anyDepth && hidden:
		case elements[0] == anyDepth:
			if isDir(path, e) {
				err = globIn(path, elements, append(above[:len(above):len(above)], st), matches)
			} else if len(elements) == 1 {
				*matches = append(*matches, path)
			}
		default:
			ok, bad := filepath.Match(elements[0], e.Name())
			switch ok = ok && (!hidden || strings.HasPrefix(elements[0], ".")); {
			case bad != nil:
				err = bad
			case ok && len(elements) > 1:
				err = globIn(path, elements[1:], nil, matches)
			case ok && !isDir(path, e):
				*matches = append(*matches, path)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isDir reports whether an entry is a folder, or a link to one.
func isDir(path string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return e.IsDir()
	}
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// fileSize is the size of a regular file.
func fileSize(path string) (int64, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("%s: no such file", path)
	case err != nil:
		return 0, err
	case st.IsDir():
		return 0, fmt.Errorf("%s: a folder: expected files, or a glob such as %s", path, allTexts(path))
	case !st.Mode().IsRegular():
		return 0, fmt.Errorf("%s: not a regular file", path)
	}
	return st.Size(), nil
}
