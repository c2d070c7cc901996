package othersystems

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// outputs are the folders of the root that hold no sources. Other tests and commands write there.
var outputs = map[string]bool{".git": true, "bin": true, "build": true, "runs": true, "studies": true}

// lookAround looks at every source file, so that go test does not take a cached result for a tree that has changed.
func lookAround(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && outputs[strings.TrimPrefix(path, root+"/")] {
			return filepath.SkipDir
		}
		if err == nil && (strings.HasSuffix(path, ".go") || d.Name() == "go.mod") {
			_, err = os.Stat(path)
		}
		return err
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
