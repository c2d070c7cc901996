package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/chromium"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// How a program ends is passed on, or no test that it runs could fail.
func TestExitCodes(t *testing.T) {
	tier.Rest(t)
	for system, run := range map[string]func(context.Context, []string) (int, error){"wasip1": wasi, "js": browser} {
		t.Run(system, func(t *testing.T) {
			if system == "js" {
				chromium.Rest(t)
			}
			program := filepath.Join(t.TempDir(), "program.wasm")
			build := exec.Command("go", "build", "-trimpath", "-o", program, "./testdata/program")
			build.Env = append(os.Environ(), "GOOS="+system, "GOARCH=wasm")
			out, err := build.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for argument, want := range map[string]int{"succeed": 0, "fail": 3, "panic": 2} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				code, err := run(ctx, []string{program, argument})
				require.NoError(t, err)
				assert.Equal(t, want, code, argument)
			}
		})
	}
	_, err := wasi(t.Context(), []string{"/no/such/program"})
	require.ErrorIs(t, err, os.ErrNotExist)
}
