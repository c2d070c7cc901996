package usertest

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// nobody is the user ID of an unprivileged user.
const nobody = 65534

// Unprivileged runs f with the file permissions of an unprivileged user: the current one, or nobody for root. As root,
// it makes the folders above dir, which is in t.TempDir(), searchable, and runs f in a goroutine of its own: f must not
// call t.FailNow.
func Unprivileged(t *testing.T, dir string, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	temporary := filepath.Clean(os.TempDir()) + string(filepath.Separator)
	require.True(t, strings.HasPrefix(dir, temporary), "%s is not in %s", dir, temporary)
	for d := filepath.Dir(dir); strings.HasPrefix(d, temporary); d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, which alone has the other user ID, ends with the goroutine
		user := -1
		defer func() { done <- user }()
		if err := syscall.Setfsuid(nobody); err != nil { // it reports no refusal
			return
		}
		if user, _ = unix.SetfsuidRetUid(-1); user == nobody {
			f()
		}
	}()
	require.Equal(t, nobody, <-done, "the user of the thread")
}
