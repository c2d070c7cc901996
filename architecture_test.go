package gpupipe

import (
	"go/ast"
	"go/parser"
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

var (
	inCode  = regexp.MustCompile("`([^`\n]+)`")
	folder  = regexp.MustCompile(`^[a-z0-9]+(/[a-z0-9]+)*$`)
	symbol  = regexp.MustCompile(`^([a-z0-9]+)\.([A-Z]\w*)$`)
	topmost = []string{"graph", "shaders", "runtime", "pipeline", "optim", "wasm", "cmd", "internal"}
)

// exportedNames returns the exported declarations of all packages, as package.Name, and the folders that hold packages.
func exportedNames(t *testing.T) (names, folders map[string]bool) {
	t.Helper()
	names, folders = map[string]bool{}, map[string]bool{}
	for _, top := range topmost {
		require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
				folders[filepath.ToSlash(dir)] = true
			}
			for _, decl := range f.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					if decl.Recv == nil {
						names[f.Name.Name+"."+decl.Name.Name] = true
					}
				case *ast.GenDecl:
					for _, spec := range decl.Specs {
						if s, ok := spec.(*ast.TypeSpec); ok {
							names[f.Name.Name+"."+s.Name.Name] = true
						}
					}
				}
			}
			return nil
		}))
	}
	return names, folders
}

// The names and folders on the architecture page exist, and every folder with packages stands there.
func TestArchitectureNames(t *testing.T) {
	text, err := os.ReadFile("docs/ARCHITECTURE.md")
	require.NoError(t, err)
	names, folders := exportedNames(t)
	listed := map[string]bool{}
	for _, m := range inCode.FindAllStringSubmatch(string(text), -1) {
		switch code := m[1]; {
		case symbol.MatchString(code):
			assert.True(t, names[code], "docs/ARCHITECTURE.md names %s, which does not exist", code)
		case folder.MatchString(code) && strings.Contains(code, "/"):
			assert.True(t, folders[code], "docs/ARCHITECTURE.md names the folder %s, which does not exist", code)
			listed[code] = true
		default:
			listed[code] = true
		}
	}
	for f := range folders {
		if parts := strings.Split(f, "/"); len(parts) == 2 && parts[0] != "internal" && parts[0] != "cmd" && parts[1] != "testdata" {
			assert.True(t, listed[f], "docs/ARCHITECTURE.md does not mention the folder %s", f)
		}
	}
}
