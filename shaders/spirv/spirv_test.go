package spirv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const kernel = `@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> t: array<f32, 64>;
var<workgroup> u: array<vec3<f32>, 4>;
@compute @workgroup_size(8, 4, 2) fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
	var s = 0.0;
	for (var i = 0u; i < 10u; i++) { s += x[g.x * 10u + i]; }
	t[l] = s;
	workgroupBarrier();
	y[g.x] = t[63u - l] + u[l % 4u].x;
}
`

// compiler returns a compiler with a folder. Those without are one: the translator, which each compiles, is large.
func compiler(t *testing.T, dir string) *Compiler {
	t.Helper()
	if dir == "" {
		c, err := withoutFolder()
		require.NoError(t, err)
		return c
	}
	c, err := NewCompiler(dir)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

var withoutFolder = sync.OnceValues(func() (*Compiler, error) { return NewCompiler("") })

// valid has spirv-val check a module, on Linux: elsewhere nothing is made of it.
func valid(t *testing.T, m *Module) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	b := make([]byte, 0, 4*len(m.Code))
	for _, w := range m.Code {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	path := filepath.Join(t.TempDir(), "m.spv")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	env := "vulkan1.2"
	if m.Code[1] >= version {
		env = "vulkan1.3"
	}
	out, err := exec.Command("spirv-val", "--target-env", env, path).CombinedOutput()
	require.NoError(t, err, "spirv-val (Debian's spirv-tools): %s", out)
}

func TestTheTranslatorIsTheOneThatWasBuilt(t *testing.T) {
	sum, err := os.ReadFile("naga/naga.wasm.sha256")
	require.NoError(t, err)
	got := sha256.Sum256(nagaWasm)
	assert.Equal(t, strings.Fields(string(sum))[0], hex.EncodeToString(got[:]))
}

func TestCompile(t *testing.T) {
	c := compiler(t, "")
	m, err := c.Compile(kernel, 0)
	require.NoError(t, err)
	valid(t, m)
	assert.Equal(t, [3]int{8, 4, 2}, m.Workgroup)
	assert.EqualValues(t, 64*4+4*16, m.WorkgroupMemory)
	assert.Equal(t, map[uint32]Binding{0: {ReadOnly: true}, 1: {Written: true}}, m.Bindings)
	again, err := c.Compile(kernel, 0)
	require.NoError(t, err)
	assert.Equal(t, m.Code, again.Code)

	clear, err := c.Compile(kernel, ZeroWorkgroup)
	require.NoError(t, err)
	valid(t, clear)
	assert.Less(t, len(clear.Code), len(m.Code))

	checked, err := c.Compile(kernel, CheckBuffers)
	require.NoError(t, err)
	valid(t, checked)
	assert.Greater(t, len(checked.Code), len(m.Code))
}

// What a kernel writes is what its code writes, whatever it declares.
func TestWrittenBindings(t *testing.T) {
	c := compiler(t, "")
	for body, want := range map[string]string{
		"z[l] = x[l] + f32(arrayLength(&y));":                   "z",
		"x[l] += 1.0;":                                          "x",
		"if (x[l] > 0.0) { y[l] = z[l]; }":                      "y",
		"let p = &y[l]; *p = x[l];":                             "y",
		"for (var i = 0u; i < 3u; i++) { z[i] = x[i] * y[l]; }": "z",
		"atomicAdd(&a[l], 1u); z[l] = f32(atomicLoad(&b[l]));":  "za",
		"atomicStore(&b[l], 1u);":                               "b",
		"inner(l); } fn inner(i: u32) { x[i] = y[i];":           "x",
	} {
		m, err := c.Compile(`
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> z: array<f32>;
@group(0) @binding(3) var<storage, read_write> a: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> b: array<atomic<u32>>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) l: u32) { `+body+` }`, 0)
		require.NoError(t, err)
		got := ""
		for i, name := range "xyzab" {
			if m.Bindings[uint32(i)].Written {
				got += string(name)
			}
		}
		assert.Equal(t, want, got, body)
	}
}

// Loops are as they were written: no counter that keeps drivers from unrolling them.
func TestLoopsAreNotBounded(t *testing.T) {
	m, err := compiler(t, "").Compile(kernel, 0)
	require.NoError(t, err)
	const opAll = 155
	for rest := m.Code[5:]; len(rest) > 0; rest = rest[rest[0]>>16:] {
		assert.NotEqual(t, uint32(opAll), rest[0]&0xffff)
	}
}

func TestFeatures(t *testing.T) {
	c := compiler(t, "")
	const half = `enable f16;
@group(0) @binding(0) var<storage, read_write> x: array<f16>;
@compute @workgroup_size(1) fn main() { x[0] = x[1] * 2.0h; }`
	const group = `@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) l: u32) { x[l] = subgroupAdd(x[l]); }`
	for source, f := range map[string]Features{half: Float16, group: Subgroups} {
		_, err := c.Compile(source, 0)
		require.Error(t, err)
		m, err := c.Compile(source, f)
		require.NoError(t, err)
		valid(t, m)
		assert.Equal(t, f == Subgroups, m.Subgroups)
	}
}

func TestMistakes(t *testing.T) {
	c, err := NewCompiler("")
	require.NoError(t, err)
	for source, want := range map[string]string{
		"":                               "expected one entry point",
		"fn main() { let x: f32 = 1u; }": "line 1: the type of `x` is expected to be `f32`",
		"@compute @workgroup_size(1) fn main() {\nreturn 1; }":                                                  "line 2: ",
		"@compute @workgroup_size(1) fn other() {}":                                                             "expected one entry point, a compute shader called main",
		"@fragment fn main() {}":                                                                                "expected one entry point",
		"override n = 1; @compute @workgroup_size(n) fn main() {}":                                              "override is not supported",
		"@group(1) @binding(0) var<storage> x: array<f32>; @compute @workgroup_size(1) fn main() { _ = x[0]; }": "group 1, binding 0 is not a storage buffer of group 0",
		"@group(0) @binding(2) var<uniform> x: vec4<f32>; @compute @workgroup_size(1) fn main() { _ = x; }":     "group 0, binding 2 is not a storage buffer",
		"@compute @workgroup_size(1) fn main() { let x = array<f32, 4>(1.0, 2.0, 3.0, 4.0); let y = x[7]; }":    "index 7 is out of [4] bounds",
		"var<workgroup> x: array<f32, 1000000000000>; @compute @workgroup_size(1) fn main() {}":                 "line 1",
		"\x00": "zero byte", "\xff\xfe": "utf-8", "𝕏": "line 1",
		strings.Repeat("(", 100000): "line 1",
		"@compute @workgroup_size(1) fn main() { let x = " + strings.Repeat("-(", 50000) + "1" + strings.Repeat(")", 50000) + "; }": "",
	} {
		_, err := c.Compile(source, 0)
		require.Error(t, err, "%.80s", source)
		assert.Contains(t, err.Error(), want)
		assert.NotContains(t, err.Error(), "\n")
		assert.Less(t, len(err.Error()), 1000)
		_, err = c.Compile(kernel, 0) // and it goes on
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	_, err = c.Compile(kernel, 0)
	assert.ErrorContains(t, err, "closed")
}

func files(t *testing.T, dir string) []string {
	names, err := filepath.Glob(filepath.Join(dir, "modules", "*"))
	require.NoError(t, err)
	return names
}

func TestResultsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	first := compiler(t, dir)
	want, err := first.Compile(kernel, 0)
	require.NoError(t, err)
	assert.Equal(t, 1, first.Translated())
	require.Len(t, files(t, dir), 1)

	second := compiler(t, dir)
	got, err := second.Compile(kernel, 0)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.Zero(t, second.Translated())
	assert.Nil(t, second.naga, "nothing needed it")

	path := files(t, dir)[0]
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, damaged := range map[string][]byte{"empty": nil, "short": whole[:len(whole)/2], "a bit": flip(whole),
		"sum only": whole[:32]} {
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		c := compiler(t, dir)
		got, err := c.Compile(kernel, 0)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
		assert.Equal(t, 1, c.Translated(), name)
		mended, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, whole, mended, name)
	}
	assert.Len(t, files(t, dir), 1, "nothing half-written is left")
}

func flip(b []byte) []byte {
	b = append([]byte(nil), b...)
	b[len(b)/2] ^= 1
	return b
}

// A folder that cannot be used costs time only.
func TestUnusableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := NewCompiler(filepath.Join(file, "cache"))
	require.ErrorContains(t, err, "cache of shaders")

	dir := t.TempDir()
	c := compiler(t, dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "naga"), 0o777))
	require.NoError(t, os.Chmod(filepath.Join(dir, "naga"), 0o777)) // others might have put code there
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "modules")))
	_, err = c.Compile(kernel, 0)
	require.NoError(t, err)

	require.NoError(t, os.Chmod(dir, 0o777))
	_, err = NewCompiler(dir)
	require.ErrorContains(t, err, dir+" may be written to by others")
}

func TestManyAtOnce(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	var wait sync.WaitGroup
	for range 4 {
		c := compiler(t, dir)
		for range 4 {
			wait.Go(func() {
				m, err := c.Compile(kernel, 0)
				assert.NoError(t, err)
				assert.Equal(t, [3]int{8, 4, 2}, m.Workgroup)
			})
		}
	}
	wait.Wait()
}

func FuzzParse(f *testing.F) {
	c, err := withoutFolder()
	if err != nil {
		f.Fatal(err)
	}
	m, err := c.Compile(kernel, 0)
	if err != nil {
		f.Fatal(err)
	}
	var b []byte
	for _, w := range m.Code {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	f.Add(b)
	f.Add(b[:24])
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Parse(b); err == nil {
			assert.GreaterOrEqual(t, m.WorkgroupMemory, int64(0))
		}
	})
}
