//go:build !js

package control

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// numbers are the numbers before n.
func numbers(n int) (lines []string) {
	for i := range n {
		lines = append(lines, strconv.Itoa(i))
	}
	return lines
}

// replies are the answers to requests.
func replies(t *testing.T, all []chan answer) (lines []string) {
	t.Helper()
	for _, c := range all {
		a := receive(t, c)
		require.NoError(t, a.err)
		lines = append(lines, string(a.data))
	}
	return lines
}

func (r *run) proxy() *slowlink.Proxy {
	r.t.Helper()
	p, err := slowlink.New(r.address())
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, p.Close()) })
	return p
}

// A connection that breaks again and again, in the middle of messages, loses and repeats nothing, in both directions.
func TestResets(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	proxy := r.proxy()
	var seen notes
	var calls atomic.Int64
	_, id := r.connect(ClientOptions{Addresses: []string{proxy.Address()}, Setup: func(c *Client) {
		c.Handle("number", func(_ context.Context, b []byte) ([]byte, error) { seen.note("%s", b); return b, nil })
		c.Handle("big", func(_ context.Context, request []byte) ([]byte, error) { calls.Add(1); return request, nil })
	}})
	big := strings.Repeat("0123456789abcdef", 1<<16)
	var asked []chan answer
	for i := range 200 {
		asked = append(asked, r.ask(id, "number", strconv.Itoa(i)))
		if i%50 == 20 {
			proxy.ResetAfter(300_000)
			reply, err := r.server.Request(t.Context(), id, "big", []byte(big))
			require.NoError(t, err)
			require.True(t, big == string(reply))
			require.Eventually(t, func() bool { return proxy.Connections() == 1 }, hang, time.Millisecond)
		}
	}
	assert.Equal(t, numbers(200), replies(t, asked))
	assert.Equal(t, numbers(200), seen.all())
	assert.Equal(t, int64(4), calls.Load(), "each request is handled once")
	assert.NotContains(t, strings.Join(r.changes.all(), "\n"), "joined "+id+"\njoined", "one session")
}

// An outage longer than the lease: the member is lost, returns, and what was sent meanwhile arrives.
func TestOutage(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	proxy := r.proxy()
	var seen notes
	restarted := make(chan string, 1)
	_, id := r.connect(ClientOptions{Addresses: []string{proxy.Address()}, Restarted: func(i string) { restarted <- i }, Setup: func(c *Client) {
		c.Handle("number", func(_ context.Context, b []byte) ([]byte, error) { seen.note("%s", b); return b, nil })
		c.Handle("echo", echo)
	}})
	proxy.Hang()
	var asked []chan answer
	for i := range 50 {
		asked = append(asked, r.ask(id, "number", strconv.Itoa(i)))
	}
	reply := make(chan string, 1)
	go func() {
		b, err := r.server.Request(context.Background(), id, "echo", []byte("late"))
		reply <- fmt.Sprintf("%s %v", b, err)
	}()
	began, stalls := time.Now(), measureStalls(t)
	r.changes.eventually(t, "lost "+id)
	assert.Less(t, time.Since(began)-stalls(), testLease+time.Second)
	assert.True(t, r.server.Members()[0].Lost)
	assert.Empty(t, seen.all())
	proxy.Resume()
	assert.Equal(t, "late <nil>", receive(t, reply))
	r.changes.eventually(t, "returned "+id)
	assert.Equal(t, numbers(50), replies(t, asked))
	assert.Equal(t, numbers(50), seen.all())
	assert.Equal(t, []string{"joined " + id, "lost " + id, "returned " + id}, r.changes.all())
	assert.Empty(t, restarted)
}

// A connection that only the member believes in: the member notices, connects anew and goes on.
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	proxy := r.proxy()
	_, id := r.connect(ClientOptions{Addresses: []string{proxy.Address()}, Setup: func(c *Client) { c.Handle("echo", echo) }})
	proxy.HalfOpen()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	reply, err := r.server.Request(ctx, id, "echo", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
}

// A coordinator that restarts has another instance and knows nothing of what was queued. The member begins a new session.
func TestCoordinatorRestarts(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	restarted := make(chan string, 1)
	canceled, started := make(chan error, 1), make(chan bool, 1)
	c, id := r.connect(ClientOptions{Restarted: func(i string) { restarted <- i }, Setup: func(c *Client) {
		c.Handle("echo", echo)
		c.HandleConcurrently("wait", func(ctx context.Context, _ []byte) ([]byte, error) {
			started <- true
			<-ctx.Done()
			canceled <- ctx.Err()
			return nil, ctx.Err()
		})
	}})
	server := r.server
	go func() { _, _ = server.Request(context.Background(), id, "wait", nil) }()
	receive(t, started)
	_, err := r.server.Request(t.Context(), id, "echo", nil)
	require.NoError(t, err)
	first, address := r.server.Instance(), r.address()
	assert.Equal(t, first, c.Instance())
	require.NoError(t, r.server.Abandon())
	r.serve(address)
	assert.Equal(t, r.server.Instance(), receive(t, restarted))
	assert.NotEqual(t, first, r.server.Instance())
	require.ErrorIs(t, receive(t, canceled), context.Canceled)
	assert.Equal(t, r.server.Instance(), c.Instance())
	reply, err := r.server.Request(t.Context(), id, "echo", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
}

// A member that connects while the coordinator restarts waits for it.
func TestConnectTriesAgain(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	address := r.address()
	require.NoError(t, r.server.Abandon())
	var once sync.Once
	c, id := r.connect(ClientOptions{Addresses: []string{address}, Note: func(format string, args ...any) {
		assert.Contains(t, fmt.Sprintf(format, args...), "; trying again for 1m0s")
		once.Do(func() { r.serve(address) })
	}})
	assert.Equal(t, r.server.Instance(), c.Instance())
	r.changes.eventually(t, "joined "+id)
}

func TestTheCoordinatorIsGone(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	lost := make(chan error, 2)
	r.connect(ClientOptions{Timeout: 400 * time.Millisecond, Lost: func(err error) { lost <- err }})
	began := time.Now()
	require.NoError(t, r.server.Abandon())
	err := receive(t, lost)
	assert.Greater(t, time.Since(began), 300*time.Millisecond)
	require.ErrorContains(t, err, "the coordinator has not answered for ")
	require.Regexp(t, "connection refused|EOF$", err, "of a server that is gone, or that was on its way")
}

func TestTheCoordinatorCloses(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	lost := make(chan error, 2)
	r.connect(ClientOptions{Lost: func(err error) { lost <- err }})
	require.NoError(t, r.server.Close())
	require.ErrorIs(t, receive(t, lost), ErrCoordinatorClosed)
}

// A member that the coordinator gives up joins anew when it is back.
func TestDroppedMembersJoinAnew(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	restarted := make(chan string, 1)
	_, id := r.connect(ClientOptions{Restarted: func(i string) { restarted <- i }})
	require.NoError(t, r.server.Drop(id, "too slow"))
	assert.Equal(t, r.server.Instance(), receive(t, restarted))
	require.Eventually(t, func() bool { return len(r.changes.all()) == 3 }, hang, time.Millisecond)
	assert.Equal(t, []string{"joined " + id, "dropped " + id, "joined " + id}, r.changes.all())
}

// A process that is killed and started again with the same certificate replaces itself.
func TestASecondProcessOfAMember(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	o := ClientOptions{Credentials: r.credentials("m")}
	first, id := r.connect(o)
	_, _ = r.connect(ClientOptions{Credentials: o.Credentials, Setup: func(c *Client) { c.Handle("echo", echo) }})
	first.end(context.Canceled)
	reply, err := r.server.Request(t.Context(), id, "echo", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
	assert.Contains(t, strings.Join(r.changes.all(), "\n"), "dropped "+id+"\njoined "+id)
}

// Large messages over a link that takes several times the lease for them: the member is not lost.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	const lease = 2 * testLease
	r := newRunWithLease(t, lease)
	proxy := r.proxy()
	_, id := r.connect(ClientOptions{Addresses: []string{proxy.Address()}, Setup: func(c *Client) { c.Handle("echo", echo) }})
	proxy.SetLatency(20 * time.Millisecond)
	proxy.SetBandwidth(10e6)
	began := time.Now()
	_, err := r.server.Request(t.Context(), id, "echo", make([]byte, 3<<20))
	require.NoError(t, err)
	assert.Greater(t, time.Since(began), 3*lease)
	assert.Equal(t, []string{"joined " + id}, r.changes.all())
}

// Nothing runs after both ends are closed, whatever the order.
func TestNothingIsLeftRunning(t *testing.T) {
	for _, serverFirst := range []bool{true, false} {
		r := newRun(t)
		c, id := r.connect(ClientOptions{Setup: func(c *Client) { c.Handle("echo", echo) }})
		_, err := r.server.Request(t.Context(), id, "echo", nil)
		require.NoError(t, err)
		if serverFirst {
			require.NoError(t, r.server.Close())
		}
		require.NoError(t, c.Close())
		require.NoError(t, r.server.Close())
		require.Eventually(t, func() bool {
			b := make([]byte, 1<<20)
			stacks := string(b[:runtime.Stack(b, true)])
			return !strings.Contains(stacks, "control.(*") && !strings.Contains(stacks, "nats-server") && !strings.Contains(stacks, "nats%2ego")
		}, hang, 10*time.Millisecond)
	}
}
