package sdk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryLanguageHasAToolchain(t *testing.T) {
	require.Len(t, toolchains, len(Languages()))
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
