// Package licenses compares the licenses of the modules that are linked into a program with what a NOTICE file states.
//
// A module's licenses are what a classifier recognizes in the license files of its root folder. A NOTICE file states
// them as an SPDX expression, one module a line:
//
//	github.com/owner/name   MIT AND Apache-2.0   the copyright holder
//
// The columns are separated by two or more spaces. Every other line of the file is free text.
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

	"github.com/google/licensecheck"
)

// Compatible lists the licenses, by SPDX identifier, under which a part of an Apache-2.0 program may stand. All of them
// allow redistribution within it against attribution.
var Compatible = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC-BY-4.0", "CC0-1.0", "FTL",
	"ISC", "MIT", "OFL-1.1", "Unicode-DFS-2016", "Unlicense", "Zlib"}

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

// minCoverage is the percentage of the text of at least one license file that the classifier must recognize.
const minCoverage = 75

// Classify returns the SPDX identifiers of the licenses of a module, sorted.
func (m Module) Classify() ([]string, error) {
	files, err := m.Files()
	if err != nil {
		return nil, err
	}
	var ids []string
	covered := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		coverage := licensecheck.Scan(text)
		covered = covered || coverage.Percent >= minCoverage
		for _, match := range coverage.Match {
			ids = append(ids, match.ID)
		}
	}
	if !covered {
		return nil, fmt.Errorf("%s: no license is recognized in %d license files in %s", m.Path, len(files), m.Dir)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

var (
	columns = regexp.MustCompile(`\s{2,}`)
	// modulePath matches a path that begins with a host's name, as the paths of modules do.
	modulePath = regexp.MustCompile(`^[a-z0-9.-]+\.[a-z]+/\S+$`)
)

// ParseNotice returns the license expression of each module that a NOTICE file lists.
func ParseNotice(text string) map[string]string {
	stated := map[string]string{}
	for line := range strings.Lines(text) {
		fields := columns.Split(strings.TrimSpace(line), -1)
		if len(fields) >= 2 && modulePath.MatchString(fields[0]) {
			stated[fields[0]] = fields[1]
		}
	}
	return stated
}

// Problems compares the licenses that were found in each module with the stated ones, and returns the problems: a
// module that is not stated, or is stated with other licenses, or has no compatible license, or is stated but not
// linked.
func Problems(found map[string][]string, stated map[string]string) []string {
	var problems []string
	for path, ids := range found {
		expression, ok := stated[path]
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("%s (%s) is linked into the program but not listed: add a line with its license and copyright holder",
				path, strings.Join(ids, " AND ")))
			continue
		case !slices.Equal(identifiers(expression), ids):
			problems = append(problems, fmt.Sprintf("%s is listed as %q, but its license files hold %s", path, expression,
				strings.Join(ids, ", ")))
		}
		if !allowed(expression) {
			problems = append(problems, fmt.Sprintf("%s: license %q is not compatible: expected one of %s", path, expression,
				strings.Join(Compatible, ", ")))
		}
	}
	for path := range stated {
		if _, ok := found[path]; !ok {
			problems = append(problems, fmt.Sprintf("%s is listed but not linked into the program: remove its line", path))
		}
	}
	slices.Sort(problems)
	return problems
}

// identifiers returns the licenses that an expression names, sorted.
func identifiers(expression string) []string {
	ids := slices.DeleteFunc(strings.Fields(expression), func(word string) bool { return word == "AND" || word == "OR" })
	slices.Sort(ids)
	return slices.Compact(ids)
}

// allowed reports whether an expression of AND and OR, where AND binds tighter, can be met with compatible licenses.
func allowed(expression string) bool {
	return slices.ContainsFunc(strings.Split(expression, " OR "), func(alternative string) bool {
		return !slices.ContainsFunc(strings.Split(alternative, " AND "), func(id string) bool { return !slices.Contains(Compatible, id) })
	})
}
