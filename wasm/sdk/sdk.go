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

// language is a language in which hooks are written.
type language struct {
	name      string
	places    [][2]string // the folders that a new hook consists of, and where in its folder they go
	toolchain Toolchain
}

// languages lists all languages in the order in which help and errors name them.
var languages = []language{
	{"c", [][2]string{{"c", "."}, {"template/c", "."}},
		Toolchain{Programs: []string{"make", "clang", "wasm-ld"}, Debian: "clang lld make", MacOS: "llvm lld",
			targets: []target{{"clang's target wasm32", "clang", clangTarget}}}},
	{"rust", [][2]string{{"rust", "gpupipe"}, {"template/rust", "."}},
		Toolchain{Programs: []string{"make", "cargo", "rustc"}, Debian: "cargo rustc libstd-rust-dev-wasm32 lld make",
			Other: "rustup target add " + rustTarget, targets: []target{{"rustc's target " + rustTarget, "rustc", rustLibrary}}}},
	{"assemblyscript", [][2]string{{"assemblyscript", "gpupipe"}, {"template/assemblyscript", "."}},
		Toolchain{Programs: []string{"make", "node", "npm"}, Debian: "nodejs npm make", MacOS: "node"}},
	{"tinygo", [][2]string{{"go/gpupipe", "gpupipe"}, {"template/go-module", "."}, {"template/tinygo", "."}},
		Toolchain{Programs: []string{"make", "go", "wasm-opt", "wasm-ld-19"},
			Debian: "g++ llvm-19-dev libclang-19-dev lld-19 binaryen wasi-libc make", Other: "Go 1.26 or later from go.dev/dl",
			targets: []target{file("/usr/lib/wasm32-wasi/libc.a"), file("/usr/lib/llvm-19/include/clang-c")}}},
	{"go", [][2]string{{"go/gpupipe", "gpupipe"}, {"template/go-module", "."}, {"template/go", "."}},
		Toolchain{Programs: []string{"make", "go"}, Debian: "make", MacOS: "go", Other: "Go 1.24 or later from go.dev/dl"}},
}

// Languages lists the names of the languages that New knows.
func Languages() (names []string) {
	for _, l := range languages {
		names = append(names, l.name)
	}
	return names
}

// find returns the language of a name.
func find(name string) (l language, known bool) {
	i := slices.IndexFunc(languages, func(l language) bool { return l.name == name })
	if i < 0 {
		return language{}, false
	}
	return languages[i], true
}

// New makes a folder with a hook in a language to begin with, all that it needs, and a Makefile to build it. It returns
// the names of the files. A folder that holds something already is refused.
func New(name, dir string) (names []string, err error) {
	l, known := find(name)
	if !known {
		return nil, fielderror.New("language", name, "one of %s", strings.Join(Languages(), ", "))
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		return nil, fmt.Errorf("%s: the folder is not empty", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, place := range l.places {
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
