package gpupipe

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	fileLines   = 500
	codeColumns = 140
)

// budgets are the most lines of Go, without tests, of each folder and all below it; the longest key that fits a file
// counts it. Whoever raises one decides that the room may grow.
var budgets = map[string]int{
	"graph":               4650,
	"graph/model":         4950,
	"graph/op":            7760,
	"shaders":             6080,
	"optim":               2900,
	"optim/outer":         500,
	"runtime":             15892,
	"wasm":                7330,
	"pipeline/config":     3250,
	"pipeline/train":      6490,
	"pipeline/data":       15695,
	"pipeline/layout":     4370,
	"pipeline/schedule":   3850,
	"pipeline/engine":     4170,
	"pipeline/replicas":   2100,
	"pipeline/wire":       500,
	"pipeline/cluster":    16090,
	"pipeline/checkpoint": 3650,
	"pipeline/metrics":    1200,
	"pipeline/trace":      1400,
	"pipeline/inference":  5100,
	"pipeline/watch":      2100,
	"pipeline/runs":       5715,
	"internal":            14130,
	"internal/testing":    8260,
	"cmd":                 13670,
	"examples":            700,
}

// sources visits the Go files of the project with their texts.
func sources(t *testing.T, visit func(path string, text []byte)) {
	t.Helper()
	files(t, ".go", visit)
}

// files visits the files of the project whose names end in a suffix.
func files(t *testing.T, suffix string, visit func(path string, text []byte)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "testdata" || d.Name() == "build" || path != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, suffix) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			visit(filepath.ToSlash(path), text)
		}
		return nil
	}))
}

func TestBudgets(t *testing.T) {
	lines := map[string]int{}
	sources(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		room := ""
		for key := range budgets {
			if fits(path, key+"/...") && len(key) > len(room) {
				room = key
			}
		}
		assert.NotEmpty(t, room, "%s is in no room with a budget", path)
		lines[room] += bytes.Count(text, []byte("\n"))
	})
	for room, most := range budgets {
		assert.LessOrEqual(t, lines[room], most, "lines of Go in %s", room)
		assert.Positive(t, lines[room], "%s has a budget and no Go", room)
	}
}

// padding is what gofmt aligns the values of a table with.
var padding = regexp.MustCompile(`(\S) {2,}`)

// Files have at most 500 lines. Lines of code have at most 140 columns besides their texts.
func TestLinesAndFilesAreShort(t *testing.T) {
	sources(t, func(path string, text []byte) {
		assert.LessOrEqual(t, bytes.Count(text, []byte("\n")), fileLines, path)
		for i, line := range strings.Split(withoutTexts(text), "\n") {
			line = padding.ReplaceAllString(line, "$1 ")
			columns := len([]rune(line)) + 3*strings.Count(line, "\t")
			assert.LessOrEqual(t, columns, codeColumns, "%s:%d", path, i+1)
		}
	})
}

// Lines of comments have at most as many columns as other prose, in Go and in C.
func TestCommentsAreShort(t *testing.T) {
	short := func(path string, text []byte) {
		for i, line := range strings.Split(string(text), "\n") {
			comment := strings.TrimLeft(line, "\t")
			columns := len([]rune(line)) + 3*(len(line)-len(comment))
			if strings.HasPrefix(comment, "// ") {
				assert.LessOrEqual(t, columns, proseColumns, "%s:%d", path, i+1)
			}
		}
	}
	sources(t, short)
	files(t, ".c", short)
	files(t, ".h", short)
}

// withoutTexts is a file without what its string literals say.
func withoutTexts(source []byte) string {
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	s.Init(file, source, nil, scanner.ScanComments)
	var out strings.Builder
	from := 0
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return out.String() + string(source[from:])
		}
		if kind == token.STRING {
			start := file.Offset(pos)
			end := start + len(literal)
			out.Write(source[from:start])
			out.WriteString(`"` + strings.Repeat("\n", bytes.Count(source[start:end], []byte("\n"))) + `"`)
			from = end
		}
	}
}
