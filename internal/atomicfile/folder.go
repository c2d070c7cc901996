package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFolder makes a folder that fill fills: complete or, on error, not at all. What fill writes must be durable when
// it returns. WriteFolder makes missing parents. An existing folder must be empty unless it is to be replaced; then it
// stays until the new one is complete. Only a kill between two renames leaves it under the name .BASE.old-…. On Windows
// a folder stays, and WriteFolder fails, while another program has a file of it open. A later WriteFolder to that path
// removes what a killed process left, after a day; a .BASE.old-… once its replacement is complete.
func WriteFolder(path string, replace bool, fill func(dir string) error) (err error) {
	if err := CheckName(path); err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil { // also of ".", whose name is needed
		return err
	}
	parent, base := filepath.Split(path)
	made := MissingFolders(filepath.Clean(parent))
	sweep(parent, base, "tmp")
	tmp, old := side(parent, base, "tmp"), ""
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
			for _, dir := range made {
				os.Remove(dir) // only while it is empty
			}
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return err
	}
	defer holdFolder(tmp)()
	if err := fill(tmp); err != nil {
		return err
	}
	if err := SyncDir(tmp); err != nil {
		return err
	}
	switch st, missing := os.Lstat(path); {
	case missing != nil:
	case !st.IsDir():
		return errors.New("found a file, expected a folder or none")
	case os.Remove(path) != nil && replace:
		old = side(parent, base, "old")
		if err := Rename(path, old); Busy(err) {
			return fmt.Errorf("%w: a program may have a file of the folder open: close it there, or choose another folder", err)
		} else if err != nil {
			return err
		}
	}
	if err := Rename(tmp, path); err != nil {
		if old != "" {
			err = errors.Join(err, Rename(old, path))
		}
		return err
	}
	for _, dir := range append([]string{path}, made...) {
		if err := SyncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	if replace {
		sweep(parent, base, "old")
	}
	if old != "" {
		if err := removeAll(old); !Busy(err) { // else it stays
			return err
		}
	}
	return nil
}

// Temporary makes an empty folder among the system's temporary ones that only this user may enter, until remove. The
// next Temporary of that name removes what killed processes left, after a day.
func Temporary(name string) (dir string, remove func() error, err error) {
	sweep(os.TempDir(), name, "tmp")
	dir = side(os.TempDir(), name, "tmp")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, err
	}
	release := holdFolder(dir)
	return dir, func() error {
		defer release()
		return os.RemoveAll(dir)
	}, nil
}
