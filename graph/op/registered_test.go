package op_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every op of this package is in the catalogue, and so has its cases tested on every backend: each type NameOp, and the
// result of each function that makes a graph.Op of nothing.
func TestEveryOpIsInTheCatalogue(t *testing.T) {
	listed, names, made := map[string]bool{}, map[string]bool{}, 0
	for _, o := range op.Catalogue() {
		assert.False(t, names[o.Name()], "%s is listed twice", o.Name())
		names[o.Name()] = true
		name := reflect.TypeOf(o).Elem().Name()
		listed[name] = true
		if !ast.IsExported(name) {
			made++
		}
	}
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	var makers []string
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if n.Name.IsExported() && strings.HasSuffix(n.Name.Name, "Op") {
					assert.True(t, listed[n.Name.Name], "%s: %s is not listed", f.Name(), n.Name.Name)
				}
			case *ast.FuncDecl:
				if r := n.Type.Results; n.Recv == nil && n.Type.TypeParams == nil && len(n.Type.Params.List) == 0 && r != nil &&
					len(r.List) == 1 {
					if s, ok := r.List[0].Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Op" {
						makers = append(makers, n.Name.Name)
					}
				}
			}
			return true
		})
	}
	assert.Len(t, makers, made, "%v", makers)
}
