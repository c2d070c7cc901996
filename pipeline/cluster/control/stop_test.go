//go:build unix

package control

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMemberProcess is the member process of TestAStoppedProcess.
func TestMemberProcess(t *testing.T) {
	address := os.Getenv("GPUPIPE_TEST_CONTROL")
	if address == "" {
		t.Skip("the member process of another test")
	}
	a, err := identity.OpenAuthority(os.Getenv("GPUPIPE_TEST_AUTHORITY"))
	require.NoError(t, err)
	r := &run{t: t, lease: testLease, authority: a, notes: &notes{}}
	c, _ := r.connect(joining{addresses: []string{address}, setup: func(c *Client) { c.Handle("echo", echo) }})
	<-c.done
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
	receive(t, r.ask(id, "echo", "0"))
	stop(t, cmd.Process)
	began, stalls := time.Now(), measureStalls(t)
	waiting := r.ask(id, "echo", "1")
	r.changes.eventually(t, "lost "+id)
	assert.Less(t, time.Since(began)-stalls(), testLease+time.Second)
	assert.Empty(t, waiting)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	r.changes.eventually(t, "returned "+id)
	assert.Equal(t, []string{"1", "2"}, replies(t, []chan answer{waiting, r.ask(id, "echo", "2")}))
}

// stop stops a process and waits until all its threads stand still: the signal alone does not.
func stop(t *testing.T, p *os.Process) {
	t.Helper()
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		require.NoError(t, err)
		require.True(t, status.Stopped(), "the process has ended")
		return
	}
}

// The hour in which a process was stopped counts as one interval: what the coordinator sent may still be on its way.
func TestSilenceOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	s := silence{length: time.Second, measured: time.Now().Add(-time.Hour)}
	assert.Equal(t, time.Second+testLease, s.measure(testLease))
	assert.Less(t, s.measure(testLease), time.Second+2*testLease)
}

// While the coordinator stands still it reads no renewals, so leases last that much longer.
func TestAStallExtendsLeases(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, time.Hour) // so nothing but this test looks at leases, or renews them
	r.connect(joining{})
	r.changes.eventually(t, "joined ")
	m := r.server.all()[0]
	m.mu.Lock()
	m.heard = time.Now().Add(time.Hour) // nothing that the member says renews its lease
	m.mu.Unlock()
	m.extend(-80 * time.Minute)
	r.server.checkLeases(time.Hour)
	assert.False(t, r.server.Members()[0].Lost)
	m.extend(-40 * time.Minute)
	r.server.checkLeases(time.Minute)
	assert.True(t, r.server.Members()[0].Lost)
}
