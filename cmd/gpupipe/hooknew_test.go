package main

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/wasm/sdk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The folder for each language builds with make and without a network, and all have the same loss. Set-up installs the
// toolchain of C, and Go is here; other languages are tested where their toolchains are.
func TestHookNewBuilds(t *testing.T) {
	tier.Rest(t)
	for _, lang := range sdk.Languages() {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			requireToolchain(t, lang)
			dir := filepath.Join(t.TempDir(), "mine")
			code, _, errs := command("hook", "new", dir, "--lang", lang)
			require.Equal(t, exitOK, code, errs)
			assert.NotContains(t, errs, "missing here")
			build := exec.Command("make", "-C", dir)
			build.Env = append(os.Environ(), "MAKEFLAGS=", "GOPROXY=off", "GOFLAGS=", "GOWORK=off", "CARGO_NET_OFFLINE=true",
				"npm_config_offline=true")
			text, err := build.CombinedOutput()
			if bytes.Contains(text, []byte("ENOTCACHED")) {
				t.Skip("omitted: npm's cache has no assemblyscript; .ci/setup.sh cross fetches it")
			}
			require.NoError(t, err, "%s", text)
			code, out, errs := command("hook", "check", filepath.Join(dir, "hook.wasm"))
			require.Equal(t, exitOK, code, errs)
			assert.Contains(t, out, "a loss f32[64] of 15 ops; reads logits, targets; logits are f32[64,256]")
		})
	}
}

// requireToolchain fails or skips a test without the toolchain of a language.
func requireToolchain(t *testing.T, lang string) {
	t.Helper()
	tools := sdk.ToolchainOf(lang)
	missing := tools.Missing()
	if lang == "tinygo" && len(missing) == 0 && !tinygoIsBuilt(t) {
		missing = []string{"TinyGo itself (make hooks builds it)"}
	}
	if lang == "go" || lang == "c" && runtime.GOOS == "linux" && os.Getenv("CROSS") != "none" {
		require.Empty(t, missing, "%s; CROSS=none omits the test of C", tools.Get())
	}
	if len(missing) > 0 {
		t.Skipf("omitted: missing here: %s; %s", strings.Join(missing, ", "), tools.Get())
	}
}

// tinygoIsBuilt reports whether the template would not first build TinyGo, which takes minutes.
func tinygoIsBuilt(t *testing.T) bool {
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	built, err := filepath.Glob(filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "gpupipe", "tinygo-*",
		"bin", "tinygo"))
	require.NoError(t, err)
	return len(built) > 0 || os.Getenv("TINYGO") != ""
}
