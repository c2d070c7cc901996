// Package sdk holds the libraries and templates with which hooks are written.
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

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

//go:embed c rust assemblyscript go template
var files embed.FS

// places say, by language, which folders make a new one, and where in it they go.
var places = map[string][][2]string{
	"c":              {{"c", "."}, {"template/c", "."}},
	"rust":           {{"rust", "gpupipe"}, {"template/rust", "."}},
	"assemblyscript": {{"assemblyscript", "gpupipe"}, {"template/assemblyscript", "."}},
	"tinygo":         {{"go/gpupipe", "gpupipe"}, {"template/go-module", "."}, {"template/tinygo", "."}},
	"go":             {{"go/gpupipe", "gpupipe"}, {"template/go-module", "."}, {"template/go", "."}},
}

// Languages lists the languages that New knows.
func Languages() []string { return []string{"c", "rust", "assemblyscript", "tinygo", "go"} }

// New makes a folder with a hook to begin with, all that it needs, and a Makefile to build it. It returns the names of
// the files. A folder that holds something already is refused.
func New(language, dir string) (names []string, err error) {
	if !slices.Contains(Languages(), language) {
		return nil, fielderror.New("language", language, "one of %s", strings.Join(Languages(), ", "))
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		return nil, fmt.Errorf("%s: the folder is not empty", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, place := range places[language] {
		written, err := copyTree(place[0], filepath.Join(dir, place[1]))
		if err != nil {
			return nil, err
		}
		names = append(names, written...)
	}
	slices.Sort(names)
	return names, nil
}

// copyTree writes the files below a folder, without the suffix ".in" of their names.
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
