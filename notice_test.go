package gpupipe

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/licensecheck"
	"github.com/gpupipe/gpupipe/internal/licenses"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compatible lists the licenses, by SPDX identifier, under which a part of an Apache-2.0 program may stand. All of them
// allow redistribution within it against attribution.
var compatible = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC-BY-4.0", "CC0-1.0", "FTL",
	"ISC", "MIT", "OFL-1.1", "Unicode-DFS-2016", "Unlicense", "Zlib"}

// minCoverage is the percentage of the text of at least one license file that the classifier must recognize.
const minCoverage = 75

// classify returns the SPDX identifiers of the licenses of a module, sorted: those that a classifier recognizes in its
// license files.
func classify(m licenses.Module) ([]string, error) {
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

// parseNotice returns the license expression of each module that a NOTICE file lists, as an SPDX expression, one module
// a line:
//
//	github.com/owner/name   MIT AND Apache-2.0   the copyright holder
//
// The columns are separated by two or more spaces. Every other line of the file is free text.
func parseNotice(text string) map[string]string {
	stated := map[string]string{}
	for line := range strings.Lines(text) {
		fields := columns.Split(strings.TrimSpace(line), -1)
		if len(fields) >= 2 && modulePath.MatchString(fields[0]) {
			stated[fields[0]] = fields[1]
		}
	}
	return stated
}

// licenseProblems compares the licenses that were found in each module with the stated ones, and returns the problems:
// a module that is not stated, or is stated with other licenses, or has no compatible license, or is stated but not
// linked.
func licenseProblems(found map[string][]string, stated map[string]string) []string {
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
		if !isCompatible(expression) {
			problems = append(problems, fmt.Sprintf("%s: license %q is not compatible: expected one of %s", path, expression,
				strings.Join(compatible, ", ")))
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

// isCompatible reports whether an expression of AND and OR, where AND binds tighter, can be met with compatible
// licenses.
func isCompatible(expression string) bool {
	return slices.ContainsFunc(strings.Split(expression, " OR "), func(alternative string) bool {
		return !slices.ContainsFunc(strings.Split(alternative, " AND "), func(id string) bool { return !slices.Contains(compatible, id) })
	})
}

const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR
ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH
THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

func TestClassifyLicenses(t *testing.T) {
	m := licenses.Module{Path: "example.org/m", Dir: t.TempDir()}
	write := func(name, text string) {
		path := filepath.Join(m.Dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	_, err := classify(m)
	require.EqualError(t, err, "example.org/m: no license is recognized in 0 license files in "+m.Dir)
	write("README", mit)
	write("LICENSE", "You may look at this.")
	_, err = classify(m)
	require.ErrorContains(t, err, "in 1 license files")
	write("COPYING", mit)
	write("licenses/LICENSE-APACHE", `Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in
compliance with the License. You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
`)
	ids, err := classify(m)
	require.NoError(t, err)
	assert.Equal(t, []string{"Apache-2.0", "MIT"}, ids)
}

func TestLicenseProblems(t *testing.T) {
	notice := parseNotice(`Program
Copyright 2026 its authors

example.org/mit         MIT                  Ann
example.org/both        MIT AND Apache-2.0   Ann  and Bob
example.org/choice      FTL OR GPL-2.0       Ann

See example.org/other for more.
wasm/example.wasm       GPL-3.0              Ann
`)
	assert.Equal(t, map[string]string{"example.org/mit": "MIT", "example.org/both": "MIT AND Apache-2.0",
		"example.org/choice": "FTL OR GPL-2.0"}, notice)
	found := func() map[string][]string {
		return map[string][]string{"example.org/mit": {"MIT"}, "example.org/both": {"Apache-2.0", "MIT"},
			"example.org/choice": {"FTL", "GPL-2.0"}}
	}
	assert.Empty(t, licenseProblems(found(), notice))

	with := found()
	with["example.org/new"] = []string{"MIT"}
	assert.Equal(t, []string{"example.org/new (MIT) is linked into the program but not listed: add a line with its license and copyright holder"},
		licenseProblems(with, notice))

	with = found()
	with["example.org/mit"] = []string{"AGPL-3.0"}
	assert.Equal(t, []string{`example.org/mit is listed as "MIT", but its license files hold AGPL-3.0`}, licenseProblems(with, notice))
	notice["example.org/mit"] = "AGPL-3.0"
	problems := licenseProblems(with, notice)
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0], `license "AGPL-3.0" is not compatible`)

	with = found()
	delete(with, "example.org/choice")
	notice["example.org/mit"] = "MIT"
	assert.Equal(t, []string{"example.org/choice is listed but not linked into the program: remove its line"}, licenseProblems(with, notice))
}

func TestLicenseExpressions(t *testing.T) {
	for expression, want := range map[string]bool{"MIT": true, "GPL-2.0": false, "FTL OR GPL-2.0": true, "MIT AND GPL-2.0": false,
		"GPL-2.0 OR MIT AND Apache-2.0": true, "GPL-2.0 AND MIT OR AGPL-3.0": false, "": false} {
		assert.Equal(t, want, isCompatible(expression), expression)
	}
}
