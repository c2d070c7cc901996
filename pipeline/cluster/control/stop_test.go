//go:build unix

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The environment of a member process.
const (
	memberAddress   = "GPUPIPE_TEST_CONTROL" // of the coordinator; its presence makes this program a member process
	memberAuthority = "GPUPIPE_TEST_AUTHORITY"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(memberAddress); address != "" {
		if err := memberProcess(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// memberProcess is the member of TestAStoppedProcess, until its process is killed.
func memberProcess(coordinator string) error {
	a, err := identity.OpenAuthority(os.Getenv(memberAuthority))
	if err != nil {
		return err
	}
	credentials, err := a.Member("m")
	if err != nil {
		return err
	}
	c := NewClient(ClientOptions{Build: testBuild})
	c.Handle("echo", echo)
	n, err := transport.Listen("", transport.Options{Self: credentials.Identity().ID, TLS: credentials.TLS(),
		Identify: credentials.Identify, Receive: func(string, transport.Message) {}, Sessions: c.Sessions(), Silence: testLease})
	if err != nil {
		return err
	}
	peer := transport.Peer{ID: identity.CoordinatorID, Addresses: []string{coordinator}}
	if err := c.Connect(context.Background(), n, peer, nil); err != nil {
		return err
	}
	<-c.done
	return nil
}

// A process that is stopped is lost within the lease and a second, and returns when it continues.
func TestAStoppedProcess(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberAddress+"="+r.address(), memberAuthority+"="+r.path)
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
