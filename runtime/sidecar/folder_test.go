//go:build unix

package sidecar

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The next worker removes the folders of a host and a worker that were killed at once, and keeps folders that are in
// use.
func TestLeftFoldersAreSweptAway(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "s-") // paths of sockets are short
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	empty, held, used := filepath.Join(dir, "gpupipe-AAAAAAAAAAAAAAAA"), filepath.Join(dir, "gpupipe-BBBBBBBBBBBBBBBB"),
		filepath.Join(dir, "gpupipe-CCCCCCCCCCCCCCCC")
	for _, name := range []string{empty, held, used, filepath.Join(dir, "gpupipe-verify-12345678"), filepath.Join(dir, "gpupipe-2345")} {
		require.NoError(t, os.Mkdir(name, 0o700))
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(held, "socket"), Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	require.NoError(t, os.WriteFile(filepath.Join(used, "notes"), nil, 0o600))
	file := filepath.Join(dir, "gpupipe-DDDDDDDDDDDDDDDD")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	socket, err := newSocket()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- serveOnce(ctx, socket, "0123456789abcdef", openNull) }()
	require.Eventually(t, func() bool { _, err := os.Stat(socket); return err == nil }, time.Hour, time.Millisecond)

	opened(t, options("null"))
	assert.NoDirExists(t, empty)
	assert.NoDirExists(t, held)
	assert.FileExists(t, filepath.Join(used, "notes"))
	assert.FileExists(t, file)
	_, err = os.Stat(socket)
	assert.NoError(t, err, "a worker waits there")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	assert.Len(t, folders(t, dir), 4, "what was there and is not a socket's")
}

// newSocket tries another place if no folder can be made, whatever the mode says.
func TestSocketsWhereNoFolderCanBeMade(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp")
	for _, dir := range []string{"/proc", "/nowhere", "/dev/null", ""} {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		socket, err := newSocket()
		require.NoError(t, err, dir)
		assert.Equal(t, "/tmp", filepath.Dir(filepath.Dir(socket)), dir)
		assert.NoDirExists(t, filepath.Dir(socket))
	}
}

// A folder is removed before it is locked, or not at all: privateFolder always returns a folder that exists.
func TestSweepingWhileFoldersAreMade(t *testing.T) {
	dir := t.TempDir()
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					sweep(dir)
				}
			}
		})
	}
	path := filepath.Join(dir, "gpupipe-EEEEEEEEEEEEEEEE")
	for range 500 {
		leave, err := privateFolder(path)
		require.NoError(t, err)
		require.True(t, locked(path), "and it is there")
		leave()
		require.NoDirExists(t, path)
	}
	close(done)
	all.Wait()
}

// A folder stays unlocked only on a file system without locks for folders. Other errors are returned, and leave no
// folder.
func TestAFolderThatCannotBeLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpupipe-FFFFFFFFFFFFFFFF")
	var files unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	few := files
	few.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	_, err := privateFolder(dir)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &files))
	require.ErrorIs(t, err, unix.EMFILE)
	assert.NoDirExists(t, dir)
	for _, e := range []error{unix.EBADF, unix.ENOTSUP, unix.EOPNOTSUPP, unix.ENOSYS, &os.PathError{Err: unix.ENOTSUP}} {
		assert.True(t, lockless(e), e)
	}
	assert.False(t, lockless(unix.EMFILE))
}

func locked(dir string) bool {
	f, err := lockFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		f.Close()
	}
	return err == unix.EWOULDBLOCK
}

func folders(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	return entries
}
