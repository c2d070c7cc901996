package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sources returns the kernels of a folder by file name, without the headlines.
func sources(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		lines := strings.SplitN(string(text), "\n", 3)
		assert.True(t, strings.HasPrefix(lines[0], "// ") && strings.HasPrefix(lines[1], "// program "), "%s begins with its name", path)
		all[filepath.Base(path)] = lines[2]
	}
	return all
}

// The kernels that the command prints are those that a run loads on a device with the same limits.
func TestKernelsAreThoseOfTheRun(t *testing.T) {
	dir := t.TempDir()
	config, printed, loaded := small(t, dir), filepath.Join(dir, "printed"), filepath.Join(dir, "loaded")
	code, out, errs := command("kernels", config, "--device", "null", "--out", printed)
	require.Equal(t, exitOK, code, errs)
	assert.Empty(t, out)
	t.Setenv(dumpVariable, loaded)
	code, _, errs = command("train", config, "--device", "null", "--set", "train.steps=4")
	require.Equal(t, exitOK, code, errs)
	assert.Equal(t, sources(t, loaded), sources(t, printed))
}

func TestKernelsArePrinted(t *testing.T) {
	config := small(t, t.TempDir())
	code, out, errs := command("kernels", config)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "// embed: embedding")
	assert.Contains(t, out, "\n// layers.0: ")
	assert.Contains(t, out, "fn main(")
	code, f16, errs := command("kernels", config, "--set", "train.precision=f16")
	require.Equal(t, exitOK, code, errs)
	assert.NotEqual(t, out, f16)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, args := range [][]string{{"kernels"}, {"kernels", config, "--out", file}, {"kernels", config, "--device", "nowhere"}} {
		code, _, errs = command(args...)
		assert.Equal(t, exitMistake, code, "%v: %s", args, errs)
	}
	t.Setenv(dumpVariable, file)
	code, _, errs = command("kernels", config, "--device", "null")
	assert.Equal(t, exitMistake, code, errs)
	assert.Contains(t, errs, dumpVariable)
}

// Vulkan's backend dumps what the driver compiles, too.
func TestDumpOfSPIRV(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(dumpVariable, dir)
	a := &app{ctx: t.Context(), stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}
	for _, name := range []string{"webgpu:0", "vulkan:0"} {
		dev, err := a.openDevice(name)
		require.NoError(t, err)
		b, err := dev.Alloc("b", 256)
		require.NoError(t, err)
		contract.Load(t, dev, contract.Increments(b, 1))
		require.NoError(t, dev.Close())
		wgsl, err := filepath.Glob(filepath.Join(dir, "increment-*.wgsl"))
		require.NoError(t, err)
		assert.Len(t, wgsl, 1, name)
	}
	spv, err := filepath.Glob(filepath.Join(dir, "increment-*."+string(device.FormatSPIRV)))
	require.NoError(t, err)
	require.Len(t, spv, 1)
	code, err := os.ReadFile(spv[0])
	require.NoError(t, err)
	assert.Equal(t, []byte{0x03, 0x02, 0x23, 0x07}, code[:4], "SPIR-V's magic number")
	assert.Zero(t, len(code)%4)
}
