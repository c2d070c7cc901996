package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// zig is the C compiler of programs for macOS, which make cross fetches where it can.
func zig(t *testing.T) string {
	t.Helper()
	tier.Rest(t)
	path, err := filepath.Abs("../../../.ci/zig/cc")
	require.NoError(t, err)
	if _, err := os.Stat("../../../build/zig/ziglang/zig"); err != nil {
		t.Skip("no build/zig: .ci/zig/setup.sh fetches ziglang from PyPI")
	}
	return path
}

// link compiles a C program for macOS with WebGPU's library and the stubs of Apple's, as cgo does.
func link(t *testing.T, processor, source string) (program string, err error) {
	t.Helper()
	cc := zig(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "main.c")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o666))
	webgpu, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/cogentcore/webgpu").Output()
	require.NoError(t, err)
	program = filepath.Join(dir, "program")
	c := exec.Command(cc, "-O2", "-o", program, file, "-L"+filepath.Join(strings.TrimSpace(string(webgpu)), "wgpu", "lib", "darwin", processor),
		"-lwgpu_native", "-framework", "QuartzCore", "-framework", "Metal", "-framework", "Metal")
	c.Env = append(os.Environ(), "GOOS=darwin", "GOARCH="+processor)
	out, err := c.CombinedOutput()
	if err != nil {
		err = &linkError{string(out)}
	}
	return program, err
}

type linkError struct{ text string }

func (e *linkError) Error() string { return e.text }

const usesWebGPU = "void *wgpuCreateInstance(const void *); int main(void) { return wgpuCreateInstance(0) != 0; }"

// The stubs have every symbol that WebGPU's library needs of Apple's, and the programs that Zig links are what macOS
// expects.
func TestWebGPULinks(t *testing.T) {
	for _, processor := range []string{"arm64", "amd64"} {
		program, err := link(t, processor, usesWebGPU)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, run(&out, "12.0", []string{program}), out.String())
		for _, dylib := range []string{"Metal.framework/Versions/A/Metal", "/usr/lib/libobjc.A.dylib", "/usr/lib/libSystem.B.dylib"} {
			assert.Contains(t, out.String(), dylib)
		}
	}
}

func TestMissingSymbolFailsTheLink(t *testing.T) {
	_, err := link(t, "arm64", "void MTLNothing(void); void CFNothing(void); int main(void) { MTLNothing(); CFNothing(); return 0; }")
	require.ErrorContains(t, err, "undefined symbol: _MTLNothing")
	assert.ErrorContains(t, err, "undefined symbol: _CFNothing")
}

// macOS kills a program for arm64 whose bytes are not those that were signed.
func TestDamageIsFound(t *testing.T) {
	path, err := link(t, "arm64", "int main(void) { return 0; }")
	require.NoError(t, err)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for want, change := range map[string]func(b []byte) []byte{
		"the hash of page 0 of":                     func(b []byte) []byte { b[0x800] ^= 1; return b },
		"bytes behind the signature, expected none": func(b []byte) []byte { return append(b, 0) },
		"found a signature that begins with": func(b []byte) []byte {
			b[bytes.LastIndex(b, []byte{0xfa, 0xde, 0x0c, 0xc0})] ^= 1
			return b
		},
		"invalid magic number": func(b []byte) []byte { b[0] = 0; return b },
	} {
		require.NoError(t, os.WriteFile(path, change(bytes.Clone(whole)), 0o666))
		assert.ErrorContains(t, run(&bytes.Buffer{}, "12.0", []string{path}), want)
	}
	require.NoError(t, os.WriteFile(path, whole, 0o666))
	require.NoError(t, run(&bytes.Buffer{}, "12.0", []string{path}))
	require.ErrorContains(t, run(&bytes.Buffer{}, "11.0", []string{path}), `for macOS "12.0" or later, expected 11.0`)
	p, err := read(path)
	require.NoError(t, err)
	for want, change := range map[string]func(p *program){
		"found no signature, expected one":                  func(p *program) { p.signature = nil },
		"expected those in /usr/lib/":                       func(p *program) { p.dylibs = append(p.dylibs, "@rpath/libfoo.dylib") },
		"linked twice":                                      func(p *program) { p.dylibs = append(p.dylibs, p.dylibs[0]) },
		"found imported symbols without a library: _f":      func(p *program) { p.unresolved = []string{"_f"} },
		"found the run paths /opt, expected none":           func(p *program) { p.rpaths = []string{"/opt"} },
		"a signature with an identity, expected one ad hoc": func(p *program) { p.signature = &signature{} },
		"a library for each (two-level namespace)":          func(p *program) { p.flags &^= 0x80 },
		"expected a position-independent program":           func(p *program) { p.flags &^= 0x200000 },
	} {
		changed := *p
		change(&changed)
		assert.ErrorContains(t, changed.check("12.0"), want)
	}
}
