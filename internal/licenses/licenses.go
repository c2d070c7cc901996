// Package licenses finds the modules that are linked into a program, and their license files.
package licenses

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Module is a dependency and the folder that holds its source.
type Module struct{ Path, Version, Dir string }

// Linked returns the modules that the packages are built from, without the main module and the standard library. Env
// adds to the environment of the go command: GOOS and GOARCH choose the target.
func Linked(env []string, packages ...string) ([]Module, error) {
	const format = "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}"
	cmd := exec.Command("go", append([]string{"list", "-deps", "-f", format}, packages...)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -deps: %w: %s", err, stderrOf(err))
	}
	lines := strings.Fields(string(bytes.ReplaceAll(out, []byte("\t"), []byte("|"))))
	slices.Sort(lines)
	var modules []Module
	for _, line := range slices.Compact(lines) {
		parts := strings.SplitN(line, "|", 3)
		modules = append(modules, Module{Path: parts[0], Version: parts[1], Dir: parts[2]})
	}
	return modules, nil
}

func stderrOf(err error) []byte {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.Stderr
	}
	return nil
}

// licenseFile matches the names of files that hold a license or a copyright notice.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)|-licen[cs]e$|^(ftl|gpl)\.txt$`)

// Files returns the license files of a module, from its root folder and from a folder of licenses there.
func (m Module) Files() ([]string, error) {
	var files []string
	for _, pattern := range []string{"*", "licenses/*", "LICENSES/*", "THIRD_PARTY_LICENSES/*"} {
		found, err := filepath.Glob(filepath.Join(m.Dir, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return slices.DeleteFunc(files, func(file string) bool {
		info, err := os.Stat(file)
		return err != nil || !info.Mode().IsRegular() || !licenseFile.MatchString(filepath.Base(file))
	}), nil
}
