//go:build !js

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	testBuild = "v1 (abc)"
	testLease = 500 * time.Millisecond
	hang      = time.Hour // guards against waiting forever
)

// notes keeps lines.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{}, n.lines...)
}

func (n *notes) eventually(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(hang); !strings.Contains(strings.Join(n.all(), "\n"), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not among %q", want, n.all())
		}
	}
}

// run is a coordinator with what it has seen.
type run struct {
	t           *testing.T
	lease       time.Duration
	maxMessages int    // 0: the usual limit
	path        string // of the authority's file
	authority   *identity.Authority
	server      *Server
	node        *transport.Node
	notes       *notes
	changes     *notes
}

func newRun(t *testing.T) *run {
	t.Helper()
	return newRunWithLease(t, transport.DefaultSilence)
}

func newRunWithLease(t *testing.T, lease time.Duration) *run {
	t.Helper()
	return newRunWith(t, lease, 0)
}

func newRunWith(t *testing.T, lease time.Duration, maxMessages int) *run {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.json")
	a, err := identity.OpenAuthority(path)
	require.NoError(t, err)
	r := &run{t: t, lease: lease, maxMessages: maxMessages, path: path, authority: a, notes: &notes{}, changes: &notes{}}
	r.serve("127.0.0.1:0")
	return r
}

func (r *run) serve(address string) {
	r.t.Helper()
	c, err := r.authority.Coordinator()
	require.NoError(r.t, err)
	s := NewServer(ServerOptions{Build: testBuild, Lease: r.lease, Note: r.notes.note, maxMessages: r.maxMessages})
	n, err := transport.Listen(address, transport.Options{Self: identity.CoordinatorID, TLS: c.TLS(identity.RoleMember),
		Identify: c.Identify,
		Receive:  func(string, transport.Message) {}, Sessions: s.Sessions(), Silence: r.lease, Explain: identity.Explain,
		Note: r.notes.note})
	require.NoError(r.t, err)
	r.server, r.node = s, n
	r.t.Cleanup(func() {
		require.NoError(r.t, s.End(Ending{}))
		require.NoError(r.t, n.Close())
	})
	s.Watch(func(c MemberChange) { r.changes.note("%s %s", c.Change, c.Member.ID) })
}

// abandon ends the coordinator as if it were killed.
func (r *run) abandon() {
	r.t.Helper()
	require.NoError(r.t, r.server.Abandon())
	require.NoError(r.t, r.node.Close())
}

func (r *run) address() string { return "127.0.0.1:" + strconv.Itoa(r.node.Port()) }

func (r *run) credentials(name string) *identity.Credentials {
	r.t.Helper()
	c, err := r.authority.Member(name)
	require.NoError(r.t, err)
	return c
}

// joining describes a member that connects.
type joining struct {
	ClientOptions
	addresses   []string // of the coordinator; nil: those of the run
	credentials *identity.Credentials
	info        []byte
	dial        func(ctx context.Context, address string) (net.Conn, error)
	setup       func(c *Client)
}

// member is a member's client with its node.
type member struct {
	*Client
	id   string
	node *transport.Node
}

// close ends a member.
func (m *member) close() error { return errors.Join(m.Client.Close(), m.node.Close()) }

// try connects a member.
func (r *run) try(o joining) (*member, error) {
	r.t.Helper()
	if o.credentials == nil {
		o.credentials = r.credentials("m")
	}
	if o.addresses == nil {
		o.addresses = []string{r.address()}
	}
	if o.Build == "" {
		o.Build = testBuild
	}
	m := &member{Client: NewClient(o.ClientOptions), id: o.credentials.Identity().ID}
	if o.setup != nil {
		o.setup(m.Client)
	}
	var err error
	m.node, err = transport.Listen("", transport.Options{Self: m.id, TLS: o.credentials.TLS(), Identify: o.credentials.Identify,
		Receive: func(string, transport.Message) {}, Sessions: m.Sessions(), Silence: r.lease,
		Network: transport.Network{Dial: o.dial}})
	require.NoError(r.t, err)
	ctx, cancel := context.WithTimeout(r.t.Context(), hang)
	defer cancel()
	err = m.Connect(ctx, m.node, transport.Peer{ID: identity.CoordinatorID, Addresses: o.addresses}, o.info)
	r.t.Cleanup(func() { require.NoError(r.t, m.close()) })
	return m, err
}

func (r *run) connect(o joining) (*member, string) {
	r.t.Helper()
	m, err := r.try(o)
	require.NoError(r.t, err)
	return m, m.id
}

// measureStalls returns a function that returns for how long this process has stood still since: a server extends all
// leases by that time.
func measureStalls(t *testing.T) (total func() time.Duration) {
	const tick = 5 * time.Millisecond
	var sum atomic.Int64
	go func() {
		for t.Context().Err() == nil {
			began := time.Now()
			time.Sleep(tick)
			sum.Add(int64(time.Since(began) - tick))
		}
	}()
	return func() time.Duration { return time.Duration(sum.Load()) }
}

// receive takes a value from a channel, or fails after a while.
func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(hang):
		t.Fatal("nothing came")
	}
	return v
}

// ask queues a request without waiting for the answer.
func (r *run) ask(id, name, request string) chan answer {
	r.t.Helper()
	m, err := r.server.member(id)
	require.NoError(r.t, err)
	_, c, err := m.ask(name, []byte(request))
	require.NoError(r.t, err)
	return c
}

func echo(_ context.Context, request []byte) ([]byte, error) { return request, nil }

func TestRequests(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	_, id := r.connect(joining{info: []byte("two GPUs"), setup: func(c *Client) {
		c.Handle("echo", echo)
		c.Handle("fail", func(context.Context, []byte) ([]byte, error) { return nil, errors.New("out of memory") })
		c.Handle("reach", func(context.Context, []byte) ([]byte, error) {
			return nil, fmt.Errorf("%w: timeout", transport.ErrUnreachable)
		})
		c.Handle("bad", func(context.Context, []byte) ([]byte, error) { return nil, usererror.Errorf("no such device") })
	}})
	reply, err := r.server.Request(t.Context(), id, "echo", []byte("hello"))
	require.NoError(t, err)
	assert.Equal(t, "hello", string(reply))
	reply, err = r.server.Request(t.Context(), id, "echo", nil)
	require.NoError(t, err)
	assert.Empty(t, reply)

	_, err = r.server.Request(t.Context(), id, "fail", nil)
	var remote *RemoteError
	require.ErrorAs(t, err, &remote)
	assert.Equal(t, RemoteError{Member: id, Text: "out of memory"}, *remote)
	assert.EqualError(t, err, "request fail: member "+id+": out of memory")
	assert.False(t, usererror.Is(err))
	_, err = r.server.Request(t.Context(), id, "reach", nil)
	assert.ErrorIs(t, err, transport.ErrUnreachable)
	_, err = r.server.Request(t.Context(), id, "bad", nil)
	assert.True(t, usererror.Is(err))
	_, err = r.server.Request(t.Context(), id, "nothing", nil)
	require.ErrorAs(t, err, &remote)
	assert.Equal(t, RemoteNoHandler, remote.Kind)
	_, err = r.server.Request(t.Context(), "unknown-1", "echo", nil)
	require.ErrorIs(t, err, ErrUnknownMember)
	_, err = r.server.Request(t.Context(), id, "", nil)
	require.ErrorContains(t, err, "name: expected one for a request")

	members := r.server.Members()
	require.Len(t, members, 1)
	assert.Equal(t, id, members[0].ID)
	assert.Equal(t, "two GPUs", string(members[0].Info))
	assert.False(t, members[0].Lost)
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	const fragment = 256 << 10
	r := newRun(t)
	_, id := r.connect(joining{setup: func(c *Client) {
		c.Handle("echo", echo)
		c.Handle("length", func(_ context.Context, b []byte) ([]byte, error) { return []byte(strconv.Itoa(len(b))), nil })
	}})
	for _, size := range []int{fragment - 1, fragment, fragment + 1, 3*fragment + 7} {
		request := make([]byte, size)
		for i := range request {
			request[i] = byte(i * 7 >> 3)
		}
		reply, err := r.server.Request(t.Context(), id, "echo", request)
		require.NoError(t, err)
		assert.True(t, string(request) == string(reply), "%d bytes", size)
	}
	reply, err := r.server.Request(t.Context(), id, "length", make([]byte, MaxMessage))
	require.NoError(t, err)
	assert.Equal(t, strconv.Itoa(MaxMessage), string(reply))
	_, err = r.server.Request(t.Context(), id, "echo", make([]byte, MaxMessage+1))
	require.ErrorContains(t, err, "found 33554433 bytes, expected at most 33554432")
}

// A member handles requests in the order of sending; a concurrent handler does not wait for them.
func TestOrder(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	var seen notes
	blocked, release := make(chan struct{}), make(chan struct{})
	_, id := r.connect(joining{setup: func(c *Client) {
		c.Handle("block", func(context.Context, []byte) ([]byte, error) {
			close(blocked)
			<-release
			seen.note("block")
			return nil, nil
		})
		c.Handle("number", func(_ context.Context, b []byte) ([]byte, error) { seen.note("%s", b); return nil, nil })
		c.HandleConcurrently("now", echo)
	}})
	r.ask(id, "block", "")
	receive(t, blocked)
	want := []string{"block"}
	for i := range 100 {
		want = append(want, strconv.Itoa(i))
		r.ask(id, "number", strconv.Itoa(i))
	}
	reply, err := r.server.Request(t.Context(), id, "now", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
	assert.Empty(t, seen.all(), "the first request is still running")
	close(release)
	require.Eventually(t, func() bool { return len(seen.all()) == len(want) }, hang, time.Millisecond)
	assert.Equal(t, want, seen.all())
}

func TestRequestsAreCanceled(t *testing.T) {
	t.Parallel()
	r := newRunWithLease(t, testLease)
	canceled, started := make(chan error, 2), make(chan bool, 2)
	_, id := r.connect(joining{setup: func(c *Client) {
		c.Handle("wait", func(ctx context.Context, _ []byte) ([]byte, error) {
			started <- true
			<-ctx.Done()
			canceled <- ctx.Err()
			return nil, ctx.Err()
		})
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	_, err := r.server.Request(ctx, id, "wait", nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, receive(t, canceled), context.Canceled)
	done := make(chan error, 1)
	go func() { _, err := r.server.Request(context.Background(), id, "wait", nil); done <- err }()
	receive(t, started)
	require.NoError(t, r.server.Drop(id, "replaced by a spare"))
	var lost *LostError
	require.ErrorAs(t, receive(t, done), &lost)
	assert.Equal(t, "replaced by a spare", lost.Reason)
	require.ErrorIs(t, receive(t, canceled), context.Canceled)
}

// A member that leaves first sends the replies that it has given.
func TestRepliesAndGoodbye(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	var handled sync.WaitGroup
	handled.Add(500)
	c, id := r.connect(joining{setup: func(c *Client) {
		c.Handle("echo", func(_ context.Context, b []byte) ([]byte, error) { handled.Done(); return b, nil })
	}})
	var replies []chan answer
	for i := range 500 {
		replies = append(replies, r.ask(id, "echo", strconv.Itoa(i)))
	}
	handled.Wait()
	receive(t, replies[499]) // the last handler has returned
	require.NoError(t, c.close())
	r.changes.eventually(t, "left "+id)
	for i, c := range replies[:499] {
		a := receive(t, c)
		require.NoError(t, a.err)
		assert.Equal(t, strconv.Itoa(i), string(a.data))
	}
	assert.Empty(t, r.server.Members())
	assert.NotContains(t, strings.Join(r.changes.all(), "\n"), "lost")
}

func TestInfo(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	info := make([]byte, maxInfo)
	r.connect(joining{info: info})
	assert.Equal(t, info, r.server.Members()[0].Info)
	_, err := r.try(joining{info: append(info, 0)})
	require.EqualError(t, err, "info: found 65537 bytes, expected at most 65536")
}

func TestClock(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	_, id := r.connect(joining{})
	c, err := r.server.Clock(t.Context(), id)
	require.NoError(t, err)
	assert.LessOrEqual(t, c.Offset.Abs(), c.Error, "one clock")
	assert.Positive(t, c.Error)
}
