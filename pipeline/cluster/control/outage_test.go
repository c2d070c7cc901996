//go:build !js

package control

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
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
	_, id := r.connect(joining{addresses: []string{proxy.Address()}, setup: func(c *Client) {
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
	restarted := make(chan bool, 1)
	_, id := r.connect(joining{addresses: []string{proxy.Address()},
		ClientOptions: ClientOptions{Restarted: func() { restarted <- true }}, setup: func(c *Client) {
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
	_, id := r.connect(joining{addresses: []string{proxy.Address()}, setup: func(c *Client) { c.Handle("echo", echo) }})
	proxy.HalfOpen()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	reply, err := r.server.Request(ctx, id, "echo", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
}

// A coordinator that restarts knows nothing of what was queued. The member begins a new session.
func TestCoordinatorRestarts(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	restarted := make(chan bool, 1)
	canceled, started := make(chan error, 1), make(chan bool, 1)
	_, id := r.connect(joining{ClientOptions: ClientOptions{Restarted: func() { restarted <- true }}, setup: func(c *Client) {
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
	address := r.address()
	r.abandon()
	r.serve(address)
	receive(t, restarted)
	require.ErrorIs(t, receive(t, canceled), context.Canceled)
	reply, err := r.server.Request(t.Context(), id, "echo", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
}

// A member that connects while the coordinator restarts waits for it.
func TestConnectTriesAgain(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	address := r.address()
	r.abandon()
	var once sync.Once
	_, id := r.connect(joining{addresses: []string{address}, ClientOptions: ClientOptions{Note: func(format string, args ...any) {
		assert.Contains(t, fmt.Sprintf(format, args...), "; trying again for 1m0s")
		once.Do(func() { r.serve(address) })
	}}})
	r.changes.eventually(t, "joined "+id)
}

func TestTheCoordinatorIsGone(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	lost := make(chan error, 2)
	r.connect(joining{ClientOptions: ClientOptions{Timeout: 400 * time.Millisecond, Lost: func(err error) { lost <- err }}})
	began := time.Now()
	r.abandon()
	err := receive(t, lost)
	assert.Greater(t, time.Since(began), 300*time.Millisecond)
	require.ErrorContains(t, err, "the coordinator has not answered for ")
	require.NotErrorIs(t, err, errSilent, "the error says why: a server that is gone refuses, one that closes ends the connection")
}

func TestTheCoordinatorCloses(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	lost := make(chan error, 2)
	r.connect(joining{ClientOptions: ClientOptions{Lost: func(err error) { lost <- err }}})
	require.NoError(t, r.server.End(Ending{}))
	require.ErrorIs(t, receive(t, lost), ErrCoordinatorClosed)
}

// A member that the coordinator gives up joins anew when it is back.
func TestDroppedMembersJoinAnew(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	restarted := make(chan bool, 1)
	_, id := r.connect(joining{ClientOptions: ClientOptions{Restarted: func() { restarted <- true }}})
	require.NoError(t, r.server.Drop(id, "too slow"))
	receive(t, restarted)
	require.Eventually(t, func() bool { return len(r.changes.all()) == 3 }, hang, time.Millisecond)
	assert.Equal(t, []string{"joined " + id, "dropped " + id, "joined " + id}, r.changes.all())
}

// A process that is killed and started again with the same certificate replaces itself.
func TestASecondProcessOfAMember(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	credentials := r.credentials("m")
	first, id := r.connect(joining{credentials: credentials})
	_, _ = r.connect(joining{credentials: credentials, setup: func(c *Client) { c.Handle("echo", echo) }})
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
	_, id := r.connect(joining{addresses: []string{proxy.Address()}, setup: func(c *Client) { c.Handle("echo", echo) }})
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
		c, id := r.connect(joining{setup: func(c *Client) { c.Handle("echo", echo) }})
		_, err := r.server.Request(t.Context(), id, "echo", nil)
		require.NoError(t, err)
		if serverFirst {
			require.NoError(t, errors.Join(r.server.End(Ending{}), r.node.Close()))
		}
		require.NoError(t, c.close())
		require.NoError(t, errors.Join(r.server.End(Ending{}), r.node.Close()))
		require.Eventually(t, func() bool {
			b := make([]byte, 1<<20)
			stacks := string(b[:runtime.Stack(b, true)])
			return !strings.Contains(stacks, "control.(*") && !strings.Contains(stacks, "transport.(*") &&
				!strings.Contains(stacks, "google.golang.org/grpc")
		}, hang, 10*time.Millisecond)
	}
}

// What waits for a member that does not take it is bounded.
func TestQueueLimit(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	proxy := r.proxy()
	_, id := r.connect(joining{addresses: []string{proxy.Address()}})
	proxy.Hang()
	large := string(make([]byte, MaxMessage))
	for range maxQueue/MaxMessage - 1 {
		r.ask(id, "x", large)
	}
	m, err := r.server.member(id)
	require.NoError(t, err)
	_, _, err = m.ask("x", []byte(large+"x"))
	require.ErrorContains(t, err, "expected at most 33554432")
	r.ask(id, "x", large)
	_, _, err = m.ask("x", []byte("x"))
	require.ErrorIs(t, err, ErrQueueFull)
	reply := message{kind: messageReply, id: 1, data: []byte("x")}
	require.ErrorIs(t, reply.send(m.session), ErrQueueFull)
	for _, kind := range []messageKind{messageCancel, messageFailure, messageEnd} {
		require.NoError(t, message{kind: kind, id: 1}.send(m.session), "others wait for it")
	}
}

// A request passes tensors that a slow link takes many leases for, and they renew the lease.
func TestRequestsPassTensors(t *testing.T) {
	t.Parallel()
	const lease = 2 * testLease
	r := newRunWithLease(t, lease)
	proxy := r.proxy()
	m, id := r.connect(joining{addresses: []string{proxy.Address()}, setup: func(c *Client) { c.Handle("echo", echo) }})
	proxy.SetBandwidth(20e6)
	require.NoError(t, r.node.Connect(1, []transport.Peer{{ID: id}}))
	require.NoError(t, m.node.Connect(1, []transport.Peer{{ID: identity.CoordinatorID}}))
	const tensors = 8 << 20
	for range 2 {
		require.NoError(t, r.node.Send(id, transport.Message{Class: transport.Bulk, Payload: [][]byte{make([]byte, tensors)}}))
		require.NoError(t, m.node.Send(identity.CoordinatorID, transport.Message{Class: transport.Hot,
			Payload: [][]byte{make([]byte, tensors)}}))
	}
	for range 5 {
		before := proxy.Forwarded()
		_, err := r.server.Request(t.Context(), id, "echo", []byte("x"))
		require.NoError(t, err)
		// Counted in bytes, because time depends on the machine: what is under way in both directions.
		assert.Less(t, proxy.Forwarded()-before, int64(4<<20))
	}
	assert.Positive(t, r.node.Links()[transport.Bulk].Unacknowledged)
	assert.Positive(t, m.node.Links()[transport.Hot].Unacknowledged)
	require.NoError(t, r.node.Flush(t.Context(), id))
	require.NoError(t, m.node.Flush(t.Context(), identity.CoordinatorID))
	assert.Equal(t, []string{"joined " + id}, r.changes.all())
}
