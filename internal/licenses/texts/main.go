// Command texts prints the license files of the modules that a program is built from, for copies that leave without
// their sources. Its arguments are the packages of the program.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/licenses"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(packages []string) error {
	modules, err := licenses.Linked(nil, packages...)
	if err != nil {
		return err
	}
	for _, m := range modules {
		files, err := m.Files()
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			fmt.Printf("==== %s %s: %s\n\n%s\n", m.Path, m.Version, filepath.Base(file), text)
		}
	}
	return nil
}
