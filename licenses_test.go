package gpupipe

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/licenses"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func readNotice(t *testing.T) string {
	t.Helper()
	notice, err := os.ReadFile("NOTICE")
	require.NoError(t, err)
	return string(notice)
}

// TestLicenses checks the license of every module that is linked into the command, on any system, or into a page for
// browsers.
func TestLicenses(t *testing.T) {
	lookAround(t)
	notice := readNotice(t)
	found := map[string][]string{}
	check := func(env []string, program string) {
		modules, err := licenses.Linked(env, program)
		require.NoError(t, err)
		for _, m := range modules {
			if found[m.Path] != nil {
				continue
			}
			ids, err := classify(m)
			require.NoError(t, err)
			found[m.Path] = ids
			assertNoticesKept(t, m, notice)
		}
	}
	for _, system := range []string{"linux", "darwin", "windows"} {
		check([]string{"GOOS=" + system, "GOARCH=amd64", "CGO_ENABLED=1"}, "./cmd/gpupipe")
	}
	for _, page := range []string{"./examples/browser", "./cmd/tab"} {
		check([]string{"GOOS=js", "GOARCH=wasm"}, page)
	}
	for _, problem := range licenseProblems(found, parseNotice(notice)) {
		t.Errorf("NOTICE: %s", problem)
	}
}

var copyrightLine = regexp.MustCompile(`(?m)^Copyright.*$`)

// assertNoticesKept checks that the copyright lines of a module's own NOTICE stand in ours, as Apache-2.0 §4(d)
// demands.
func assertNoticesKept(t *testing.T, m licenses.Module, notice string) {
	t.Helper()
	theirs, err := os.ReadFile(m.Dir + "/NOTICE")
	if err != nil {
		return
	}
	for _, line := range copyrightLine.FindAllString(string(theirs), -1) {
		assert.Contains(t, notice, strings.TrimSpace(line), "the NOTICE of %s has this line", m.Path)
	}
}

// TestCompiledFilesAreListed checks that NOTICE says of every compiled file in the repository what it is made of.
func TestCompiledFilesAreListed(t *testing.T) {
	var patterns []string
	for _, line := range strings.Split(readNotice(t), "\n") {
		if first, _, _ := strings.Cut(strings.TrimSpace(line), "  "); strings.HasSuffix(first, ".wasm") {
			patterns = append(patterns, first)
		}
	}
	require.NotEmpty(t, patterns)
	var files []string
	require.NoError(t, filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && file == "build" {
			return fs.SkipDir
		}
		if strings.HasSuffix(file, ".wasm") {
			files = append(files, filepath.ToSlash(file))
		}
		return err
	}))
	require.NotEmpty(t, files)
	used := map[string]bool{}
	for _, file := range files {
		listed := false
		for _, pattern := range patterns {
			if ok, err := path.Match(pattern, file); err == nil && ok {
				listed, used[pattern] = true, true
			}
		}
		assert.True(t, listed, "NOTICE lists no license for %s", file)
	}
	for _, pattern := range patterns {
		assert.True(t, used[pattern], "NOTICE lists %s, which matches no file", pattern)
	}
}
