// Package usertest lets tests access files as an unprivileged user, since permissions do not bind root.
package usertest

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// nobody is the user ID of an unprivileged user.
const nobody = 65534

// Unprivileged runs f such that permissions bind its accesses to files: as the current user, or for root as another
// user, who can reach dir. f runs in a goroutine of its own, so it does not call t.FailNow.
func Unprivileged(t *testing.T, dir string, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	for d := filepath.Dir(dir); d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, which alone has the other user ID, ends with the goroutine
		err := syscall.Setfsuid(nobody)
		if err == nil {
			f()
		}
		done <- err
	}()
	require.NoError(t, <-done)
}
