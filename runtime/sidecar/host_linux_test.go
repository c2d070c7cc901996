package sidecar

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memoryFolder makes a folder with a short path, as paths of sockets are, in a file system in memory, as that of
// XDG_RUNTIME_DIR is.
func memoryFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "s-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The host makes nothing in the folder of sockets, not even for a moment in which it may be killed: no worker would
// remove it.
func TestNewSocketMakesNothing(t *testing.T) {
	dir := memoryFolder(t)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE)
	require.NoError(t, err)
	socket, err := newSocket()
	require.NoError(t, err)
	assert.Equal(t, dir, filepath.Dir(filepath.Dir(socket)))
	events := make([]byte, 4096)
	_, err = unix.Read(watch, events)
	require.ErrorIs(t, err, unix.EAGAIN, "nothing was made or removed")
	require.NoError(t, os.Mkdir(filepath.Dir(socket), 0o700))
	n, err := unix.Read(watch, events)
	require.NoError(t, err)
	assert.Positive(t, n, "the watch reports what is made")
	require.True(t, folderCanBeMade(filepath.Join(dir, "gpupipe-G")))
	require.False(t, folderCanBeMade(filepath.Join(dir, "none", "gpupipe-G")))
}

// If the host or the worker is killed while the device is opened, the other one ends or reports it, and removes the
// folder.
func TestKilledWhileOpening(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 1))
	inFolder := 0
	for i := range 18 {
		dir := memoryFolder(t)
		nothingLeft := func() bool { return len(folders(t, dir)) == 0 && len(workersIn(dir)) == 0 }
		host := exec.Command(os.Args[0])
		host.Env = append(os.Environ(), role+"=host", "SIDECAR_TEST_DEVICE=null", "XDG_RUNTIME_DIR="+dir)
		require.NoError(t, host.Start())
		switch i % 3 {
		case 0: // any moment
			time.Sleep(time.Duration(rng.Float64() * float64(100*time.Millisecond)))
		default: // the worker waits for its host, which has only begun to look for it
			require.Eventually(t, func() bool { return len(workersIn(dir)) > 0 }, time.Hour, 100*time.Microsecond)
			require.NoError(t, host.Process.Signal(syscall.SIGSTOP))
			for began := time.Now(); len(folders(t, dir)) == 0 && time.Since(began) < time.Second; {
				time.Sleep(time.Millisecond)
			}
			inFolder += len(folders(t, dir))
		}
		if i%3 == 2 {
			for _, pid := range workersIn(dir) {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			require.NoError(t, host.Process.Signal(syscall.SIGCONT))
			assert.Eventually(t, nothingLeft, time.Minute, time.Millisecond, "the worker was killed")
		}
		require.NoError(t, host.Process.Kill())
		_ = host.Wait()
		assert.Eventually(t, nothingLeft, time.Minute, time.Millisecond, "the host was killed")
	}
	assert.Greater(t, inFolder, 3, "too few of the moments matter")
}

// If both are killed at once, as when the system runs out of memory, the next worker removes what is left.
func TestBothAreKilled(t *testing.T) {
	dir := memoryFolder(t)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	left := 0
	for range 10 {
		host := exec.Command(os.Args[0])
		host.Env = append(os.Environ(), role+"=host", "SIDECAR_TEST_DEVICE=null")
		host.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		require.NoError(t, host.Start())
		require.Eventually(t, func() bool { return len(workersIn(dir)) > 0 }, time.Hour, 100*time.Microsecond)
		require.NoError(t, host.Process.Signal(syscall.SIGSTOP))
		for began := time.Now(); len(folders(t, dir)) == 0 && time.Since(began) < time.Second; {
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, syscall.Kill(-host.Process.Pid, syscall.SIGKILL))
		_ = host.Wait()
		for _, f := range folders(t, dir) {
			left++
			require.Eventually(t, func() bool { return !locked(filepath.Join(dir, f.Name())) }, time.Hour, time.Millisecond,
				"the worker dies a moment later")
		}
		d, err := Open(options("null"))
		require.NoError(t, err)
		require.NoError(t, d.Close())
		assert.Empty(t, folders(t, dir))
	}
	assert.Positive(t, left, "none of the moments matters")
}

// workersIn are the processes whose socket is, or was, below a folder.
func workersIn(dir string) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		if command, err := os.ReadFile(name + "/cmdline"); err == nil && strings.Contains(string(command), dir) {
			pid, _ := strconv.Atoi(filepath.Base(name))
			pids = append(pids, pid)
		}
	}
	return pids
}
