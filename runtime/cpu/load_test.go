//go:build linux && cgo

package cpu

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Systems may refuse what the loader needs. The tests run in processes of their own, which refuse it to themselves
// after the kernel was compiled: a system call, if its third argument has one of some bits (or whatever it is, for
// none).
const (
	refuseVariable = "GPUPIPE_TEST_REFUSE"
	cacheVariable  = "GPUPIPE_TEST_CACHE"
)

func refuse(t *testing.T, call, bits uint32) {
	const nr, third = 0, 16 + 2*8 // offsets in seccomp_data, whose arguments are little-endian words of 8 bytes
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: third},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: bits, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if bits == 0 {
		program[3] = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA}
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread()
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&filter)))
	require.Zero(t, errno)
}

// restricted runs this test in another process with a variable, and checks that it passes.
func restricted(t *testing.T, what string) {
	dir := t.TempDir()
	d := open(t, Options{CacheDir: dir})
	contract.Load(t, d, counting(alloc(t, d, 4096), 1)) // fills the cache
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), refuseVariable+"="+what, cacheVariable+"="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: "+t.Name())
}

// Without executable mappings, Load returns a clear error.
func TestNoExecutableMappings(t *testing.T) {
	if os.Getenv(refuseVariable) == "" {
		restricted(t, "mappings")
		return
	}
	d := open(t, Options{CacheDir: os.Getenv(cacheVariable)})
	b := alloc(t, d, 4096)
	refuse(t, unix.SYS_MMAP, unix.PROT_EXEC)
	_, err := d.Load(counting(b, 1))
	require.ErrorContains(t, err, `cpu:0: compile "count": the system does not load compiled code: `)
	require.ErrorContains(t, err, "failed to map segment from shared object")
	assert.NotContains(t, err.Error(), "\n")
	require.NoError(t, d.Write(b, 0, make([]byte, 4)))
	require.NoError(t, d.Sync())
}

// Without memory files, kernels are loaded from private files, of which none stays.
func TestNoMemoryFiles(t *testing.T) {
	if os.Getenv(refuseVariable) == "" {
		restricted(t, "files")
		return
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	d := open(t, Options{CacheDir: os.Getenv(cacheVariable)})
	b := alloc(t, d, 4096)
	refuse(t, unix.SYS_MEMFD_CREATE, 0)
	_, err := fromMemory([]byte("library"))
	require.ErrorContains(t, err, "memory file: operation not permitted")
	require.NoError(t, d.Run(contract.Load(t, d, counting(b, 9))))
	assert.EqualValues(t, 1, contract.Words(contract.Read(t, d, b, 0, 64))[8])
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// No handle of an unloaded library stays, which load would return again.
func TestFreedLibrariesAreForgotten(t *testing.T) {
	toolchain, err := newToolchain(Options{CacheDir: t.TempDir()})
	require.NoError(t, err)
	k, c := newKernels(toolchain.compiler, 1), &compilation{source: trial, done: make(chan struct{})}
	k.build(t.Context(), []*compilation{c})
	require.NoError(t, c.err)
	require.Len(t, k.libraries.loaded, 1)
	k.libraries.free()
	assert.Empty(t, k.libraries.loaded)
}

func TestPathsOfMemoryFilesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		path := memoryPath(7)
		require.False(t, seen[path], path)
		seen[path] = true
	}
}
