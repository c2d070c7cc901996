package tab

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
)

// built are the files of the page. The program of the page, program.wasm.gz, and wasm_exec.js are there after make
// build; they are no part of the source.
//
//go:embed page
var built embed.FS

// Files of the page that are built.
const (
	programFile = "program.wasm.gz"
	supportFile = "wasm_exec.js"
)

// ErrNotBuilt is the error of a program without a page.
var ErrNotBuilt = errors.New("this gpupipe was built without the page for browsers: make build includes it, go build does not")

// Assets returns the files of the page that this program contains.
func Assets() fs.FS {
	files, err := fs.Sub(built, "page")
	if err != nil {
		panic(err) // the name is valid
	}
	return files
}

// check reports which file of the page is missing.
func check(files fs.FS) error {
	for _, name := range []string{programFile, supportFile} {
		if _, err := fs.Stat(files, name); err != nil {
			return fmt.Errorf("%w (%s is missing)", ErrNotBuilt, name)
		}
	}
	return nil
}
