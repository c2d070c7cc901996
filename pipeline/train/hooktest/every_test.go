package hooktest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run calls every hook of the table: with a hook that traps, it fails. A new hook that training forgets does not
// fail.
func TestRunsCallEveryHook(t *testing.T) {
	for i, k := range hook.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			dir, module := t.TempDir(), w.Hook(k.Name)
			module.Funcs[len(module.Funcs)-1].Body = []byte{w.Unreachable}
			path := filepath.Join(dir, "trap.wasm")
			require.NoError(t, os.WriteFile(path, module.Encode(), 0o666))
			overrides := []string{"train.steps=2", "hooks=[{file: " + path + ", hook: " + k.Name + "}]"}
			if i%2 == 0 {
				overrides = append(overrides, independent...)
			}
			if k.Name == hook.BuildModel {
				overrides = append(overrides, "model={arch: hook, vocab_size: 256, seq_len: 8}")
			}
			_, err := train.Run(context.Background(), traintest.Demo(t, dir, overrides...),
				runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
			require.Error(t, err)
			assert.Contains(t, err.Error(), "trap.wasm")
			assert.Contains(t, err.Error(), k.Name)
			assert.Contains(t, err.Error(), "unreachable")
		})
	}
}
