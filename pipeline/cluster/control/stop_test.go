//go:build unix

package control

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMemberProcess is not a test: it is the member process of TestAStoppedProcess.
func TestMemberProcess(t *testing.T) {
	address := os.Getenv("GPUPIPE_TEST_CONTROL")
	if address == "" {
		return
	}
	a, err := identity.OpenAuthority(os.Getenv("GPUPIPE_TEST_AUTHORITY"))
	require.NoError(t, err)
	r := &run{t: t, authority: a, notes: &notes{}}
	c, _ := r.connect(ClientOptions{Addresses: []string{address}})
	for i := 0; ; i++ {
		if c.Publish("loss", []byte(strconv.Itoa(i))) != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A process that is stopped is lost within the lease and a second, and returns when it continues.
func TestAStoppedProcess(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemberProcess$")
	cmd.Env = append(os.Environ(), "GPUPIPE_TEST_CONTROL="+r.address(), "GPUPIPE_TEST_AUTHORITY="+r.path)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	r.changes.eventually(t, "joined ")
	id := r.server.Members()[0].ID
	require.Eventually(t, func() bool { return len(r.eventsOf(id)) > 3 }, 5*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	began := time.Now()
	r.changes.eventually(t, "lost "+id)
	assert.Less(t, time.Since(began), testLease+time.Second)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	r.changes.eventually(t, "returned "+id)
	n := len(r.eventsOf(id))
	require.Eventually(t, func() bool { return len(r.eventsOf(id)) > n+3 }, 5*time.Second, time.Millisecond)
	events := r.eventsOf(id)
	assert.Equal(t, numbers("loss", len(events)), events)
}
