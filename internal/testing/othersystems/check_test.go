package othersystems

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/sources"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/assign"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/errorsas"
	"golang.org/x/tools/go/analysis/passes/lostcancel"
	"golang.org/x/tools/go/analysis/passes/nilfunc"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/stdmethods"
	"golang.org/x/tools/go/analysis/passes/structtag"
	"golang.org/x/tools/go/analysis/passes/unreachable"
	"golang.org/x/tools/go/analysis/passes/unusedresult"
)

// vet has analyzers of go vet, but for those that read assembly or the bodies of other modules' functions.
var vet = []*analysis.Analyzer{assign.Analyzer, atomic.Analyzer, bools.Analyzer, copylock.Analyzer, errorsas.Analyzer, lostcancel.Analyzer,
	nilfunc.Analyzer, shift.Analyzer, stdmethods.Analyzer, structtag.Analyzer, unreachable.Analyzer, unusedresult.Analyzer}

const root = "../../.."

// lookAround looks at every source file, so that go test does not take a cached result for a tree that has changed.
func lookAround(t *testing.T) {
	t.Helper()
	require.NoError(t, sources.Walk(root, func(file string) error {
		if strings.HasSuffix(file, ".go") || path.Base(file) == "go.mod" {
			_, err := os.Stat(filepath.Join(root, file))
			return err
		}
		return nil
	}))
}

// Every package of the project, with its tests, is fine on macOS and Windows.
func TestOtherSystems(t *testing.T) {
	tier.Rest(t)
	lookAround(t)
	for _, target := range []string{"darwin/arm64", "windows/amd64"} {
		system, processor, _ := strings.Cut(target, "/")
		wrong, checked, err := Check(system, processor, vet, root+"/...")
		require.NoError(t, err)
		assert.Empty(t, strings.Join(wrong, "\n"), target)
		assert.Greater(t, checked, 100, target)
	}
}
