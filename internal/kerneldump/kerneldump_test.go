package kerneldump

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func load(t *testing.T, dump device.Dump, labels ...string) {
	t.Helper()
	d := null.New(null.Options{Dump: dump})
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	for _, label := range labels {
		p := contract.Increments(b, 1)
		p.Shaders[0].Label = label
		_, err = d.Load(p)
		require.NoError(t, err)
	}
}

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kernels")
	dump, err := Folder(dir)
	require.NoError(t, err)
	load(t, dump, "layers.0 backward: matmul×2\nadd", "layers.0 backward: matmul×2\nadd", "../../etc/passwd")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "each kernel once, and in the folder")
	assert.Regexp(t, `^etc-passwd-[0-9a-f]{8}\.wgsl$`, files[0].Name())
	assert.Regexp(t, `^layers.0-backward-matmul-2-add-[0-9a-f]{8}\.wgsl$`, files[1].Name())
	text, err := os.ReadFile(filepath.Join(dir, files[1].Name()))
	require.NoError(t, err)
	assert.Equal(t, "// layers.0 backward: matmul×2 add\n// program \"increments\", workgroup of 64×1×1, 1 bindings\n"+contract.Increment(1).Source, string(text))
}

func TestFolderFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Folder(file)
	require.ErrorContains(t, err, "dumping kernels: ")

	dir := t.TempDir()
	dump, err := Folder(filepath.Join(dir, "kernels"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	d := null.New(null.Options{Dump: dump})
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	_, err = d.Load(contract.Increments(b, 1))
	require.ErrorContains(t, err, `null:0: compile "increment": dumping kernels: `)
}

func TestStream(t *testing.T) {
	var out bytes.Buffer
	dump := Stream(&out)
	load(t, dump, "first", "second")
	assert.Equal(t, "// first\n// program \"increments\", workgroup of 64×1×1, 1 bindings\n"+contract.Increment(1).Source+"\n", out.String())
	require.NoError(t, dump(device.Kernel{Shader: &device.Shader{}, Format: device.FormatSPIRV, Code: []byte{3, 2, 35, 7}}))
	assert.NotContains(t, out.String(), "\a")
}

func TestAssembly(t *testing.T) {
	s := &device.Shader{Label: "products", Source: "; SPIR-V\nOpNop", Workgroup: [3]int{128, 1, 1}}
	k := device.Kernel{Program: "F", Shader: s, Format: s.Format(), Code: []byte(s.Source)}
	assert.Equal(t, device.FormatAssembly, k.Format)
	assert.Equal(t, "; SPIR-V\nOpNop\n; products\n; program \"F\", workgroup of 128×1×1, 0 bindings\n", string(content(k)))
}
