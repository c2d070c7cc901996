package meter

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

var (
	errFuel  = errors.New("out of fuel")
	errStack = errors.New("stack overflow")
)

// host is a runtime whose tick grants more until a budget is used up.
type host struct {
	wazero.Runtime
	left    int64 // of the budget, not granted yet
	grant   int64 // at a time
	ticks   int   // for fuel
	refused int   // growth
}

// tick is what the real host does, in small: what was granted and left over is known from the counter.
func (h *host) tick(_ context.Context, m api.Module, stack []uint64) {
	switch uint32(stack[0]) {
	case OutOfRoom:
		panic(errStack)
	case GrowthRefused:
		h.refused++
	case OutOfFuel:
		fuel := m.ExportedGlobal(Fuel).(api.MutableGlobal)
		left := h.left + int64(fuel.Get())
		if left < 0 {
			panic(errFuel)
		}
		h.ticks++
		g := min(h.grant, left)
		h.left = left - g
		fuel.Set(uint64(g))
	}
}

func newHost(t testing.TB, c wazero.RuntimeConfig) *host {
	ctx := context.Background()
	h := &host{left: 1 << 40, grant: 500_000}
	c = c.WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesTailCall).WithDebugInfoEnabled(false)
	h.Runtime = wazero.NewRuntimeWithConfig(ctx, c)
	t.Cleanup(func() { h.Close(ctx) })
	_, err := h.NewHostModuleBuilder(ImportModule).NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(h.tick), []api.ValueType{api.ValueTypeI32}, nil).Export(Tick).Instantiate(ctx)
	require.NoError(t, err)
	return h
}

// wazeroDir is where the runtime's source lies; the WebAssembly specification's tests and its fuzzers' finds are part
// of it.
var wazeroDir = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tetratelabs/wazero").Output()
	return strings.TrimSpace(string(out)), err
})

// corpus lists files of wazero's source by a pattern.
func corpus(t testing.TB, pattern string) []string {
	dir, err := wazeroDir()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	require.NotEmpty(t, files, "%s holds no %s", dir, pattern)
	return files
}

// outcome is what of an error the rewriter must not change.
func outcome(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n")
	first = strings.TrimSuffix(first, " (recovered by wazero)")
	return fmt.Sprintf("trap: %s", strings.TrimPrefix(first, "wasm error: "))
}
