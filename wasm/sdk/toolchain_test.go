package sdk

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryLanguageHasAToolchain(t *testing.T) {
	for _, l := range Languages() {
		c := ToolchainOf(l)
		assert.NotEmpty(t, c.Programs, l)
		for _, system := range []string{"linux", "darwin", "windows"} {
			assert.NotEmpty(t, c.get(system), "%s on %s", l, system)
		}
	}
	// The Makefiles' first lines name the same packages.
	for _, l := range []string{"c", "rust", "assemblyscript"} {
		text, err := files.ReadFile("template/" + l + "/Makefile")
		require.NoError(t, err)
		assert.Contains(t, string(text), "# Debian and Ubuntu: apt-get install "+ToolchainOf(l).Debian)
	}
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	assert.Equal(t, []string{"make", "clang", "wasm-ld"}, ToolchainOf("c").Missing())
	assert.Equal(t, "on Debian and Ubuntu: apt-get install clang lld make", ToolchainOf("c").get("linux"))
	assert.Equal(t, "on macOS: brew install llvm lld", ToolchainOf("c").get("darwin"))
}

// Programs that cannot make WebAssembly are named with what they lack: Xcode's clang, a rustc without the target's
// library.
func TestMissingTargetsAreNamed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("programs of this test are shell scripts")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, program := range []string{"make", "wasm-ld", "cargo"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"), 0o777))
	}
	script := func(program, output string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\necho '"+output+"'\n"), 0o777))
	}
	script("clang", "x86-64 - 64-bit X86")
	script("rustc", dir)
	assert.Equal(t, []string{"clang's target wasm32"}, ToolchainOf("c").Missing())
	assert.Equal(t, []string{"rustc's target wasm32-unknown-unknown"}, ToolchainOf("rust").Missing())
	script("clang", "wasm32 - WebAssembly 32-bit")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libcore-1.rlib"), nil, 0o666))
	assert.Empty(t, ToolchainOf("c").Missing())
	assert.Empty(t, ToolchainOf("rust").Missing())
}
