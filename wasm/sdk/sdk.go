// Package sdk holds what is needed to write hooks in other languages than Go.
package sdk

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed c rust template
var files embed.FS

// Languages lists those that New knows.
func Languages() []string { return []string{"c", "rust"} }

// New makes a folder with a hook to begin with, all that it needs, and a Makefile or Cargo.toml to build it. It returns the names
// of the files. A folder that holds something already is refused.
func New(language, dir string) (names []string, err error) {
	if !slices.Contains(Languages(), language) {
		return nil, fmt.Errorf("language %q, expected one of %s", language, strings.Join(Languages(), ", "))
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		return nil, fmt.Errorf("%s: the folder is not empty", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	places := map[string][2]string{"c": {"c", "."}, "rust": {"rust", "gpupipe"}}
	for from, to := range map[string]string{places[language][0]: places[language][1], "template/" + language: "."} {
		written, err := copyTree(from, filepath.Join(dir, to))
		if err != nil {
			return nil, err
		}
		names = append(names, written...)
	}
	slices.Sort(names)
	return names, nil
}

// copyTree writes the files below a folder; a name's end ".in" is left out.
func copyTree(from, to string) (names []string, err error) {
	err = fs.WalkDir(files, from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Join(to, strings.TrimSuffix(strings.TrimPrefix(path, from+"/"), ".in"))
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return err
		}
		names = append(names, name)
		return os.WriteFile(name, text, 0o666)
	})
	return names, err
}
