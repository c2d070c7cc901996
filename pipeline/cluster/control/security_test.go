//go:build !js

package control

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// intruder is the node of one who has a certificate and says what he likes.
type intruder struct {
	id      string
	config  *tls.Config
	session *transport.Session
	errs    notes // of attempts to connect, and the end of the session
}

// intrude begins a session by hand.
func (r *run) intrude(id string, config *tls.Config, h hello) *intruder {
	r.t.Helper()
	i := &intruder{id: id, config: config}
	trust := func(s *transport.Session, err error) { i.errs.note("%v", explain(err)) }
	c := r.credentials("anyone")
	n, err := transport.Listen("", transport.Options{Self: id, TLS: config, Identify: c.Identify,
		Receive: func(string, transport.Message) {}, Sessions: transport.Sessions{Failed: trust, Ended: trust}})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, n.Close()) })
	i.session, err = n.Open(transport.Peer{ID: identity.CoordinatorID, Addresses: []string{r.address()}}, encodeJSON(h))
	require.NoError(r.t, err)
	return i
}

var honest = hello{Protocol: identity.Protocol, Build: testBuild}

// begin begins a session as an honest member does.
func (r *run) begin(name string) *intruder {
	r.t.Helper()
	c := r.credentials(name)
	i := r.intrude(c.Identity().ID, c.TLS(), honest)
	r.changes.eventually(r.t, "joined "+i.id)
	return i
}

// A member's certificate is good for its own session only, and its answers for its own requests.
func TestPermissions(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	started, release := make(chan bool), make(chan bool)
	_, victim := r.connect(joining{setup: func(c *Client) {
		c.Handle("wait", func(context.Context, []byte) ([]byte, error) {
			started <- true
			<-release
			return []byte("true"), nil
		})
	}})
	mallory := r.credentials("mallory")
	own := mallory.Identity().ID
	thief := r.intrude(victim, mallory.TLS(), honest)
	thief.errs.eventually(t, `it claims to be "`+victim+`", but its certificate names "`+own+`"`)
	r.notes.eventually(t, `it claims to be "`+victim+`", but its certificate names "`+own+`"`)

	reply := r.ask(victim, "wait", "secret")
	receive(t, started)
	i := r.begin("mallory")
	for id := range uint64(100) {
		require.NoError(t, message{kind: messageReply, id: id, data: []byte("false")}.send(i.session))
	}
	i.session.Settle(t.Context())
	release <- true
	assert.Equal(t, "true", string(receive(t, reply).data))
	assert.Equal(t, []string{"joined " + victim, "joined " + i.id}, r.changes.all())
}

func TestConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	otherAuthority, err := identity.NewAuthority()
	require.NoError(t, err)
	stranger, err := otherAuthority.Member("mallory")
	require.NoError(t, err)
	coordinator, err := r.authority.Coordinator()
	require.NoError(t, err)
	expelled := r.credentials("bob")
	require.NoError(t, r.authority.Expel(expelled.Identity().ID))
	member := r.credentials("m")
	none := member.TLS()
	none.GetClientCertificate = nil
	trusting := stranger.TLS()
	trusting.InsecureSkipVerify, trusting.VerifyConnection = true, nil
	const refuses = "the other side refuses this certificate: it is not one of its run, or not one of the expected role"
	for name, c := range map[string]struct {
		config         *tls.Config
		client, server string
	}{
		"no certificate": {none, "the other side demands a certificate of its run", "the other side sent no certificate"},
		"another CA": {trusting, "the other side refuses this certificate: it comes from the CA of another run",
			"the certificate of the other side comes from the CA of another run"},
		"another run's coordinator": {stranger.TLS(), "the certificate of the other side is one of another run",
			"the other side refuses this certificate"},
		"a coordinator as member": {coordinator.TLS(), refuses, "expected the role [member]"},
		"expelled":                {expelled.TLS(), refuses, "member " + expelled.Identity().ID + " is excluded from the run"},
	} {
		t.Run(name, func(t *testing.T) {
			i := r.intrude("m", c.config, honest)
			i.errs.eventually(t, c.client)
			r.notes.eventually(t, c.server)
		})
	}
	t.Run("through Connect", func(t *testing.T) {
		_, err := r.try(joining{credentials: expelled})
		require.ErrorContains(t, err, "the other side refuses this certificate")
		assert.True(t, usererror.Is(err), "exits with code 2")
		_, err = r.try(joining{credentials: stranger})
		assert.True(t, usererror.Is(err), "%v", err)
		_, err = r.try(joining{addresses: []string{"127.0.0.1:1"}, credentials: member,
			ClientOptions: ClientOptions{Timeout: time.Millisecond}})
		require.Error(t, err)
		assert.False(t, usererror.Is(err), "the coordinator may only be away: %v", err)
	})
	t.Run("no TLS", func(t *testing.T) {
		c, err := net.Dial("tcp", r.address())
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		require.NoError(t, err)
		text, _ := io.ReadAll(c)
		assert.NotContains(t, string(text), "HTTP")
		r.notes.eventually(t, "the other side does not speak TLS")
	})
	t.Run("slow handshake", func(t *testing.T) {
		c, err := net.Dial("tcp", r.address())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte{22, 3, 1})
		require.NoError(t, err)
		_, _ = io.ReadAll(c)
		r.notes.eventually(t, "the other side did not complete the handshake in time")
	})
	t.Run("slow hello", func(t *testing.T) {
		config := member.TLS()
		config.NextProtos = []string{"h2"}
		c, err := tls.Dial("tcp", r.address(), config)
		require.NoError(t, err)
		defer c.Close()
		_, _ = io.ReadAll(c)
		r.notes.eventually(t, "a connection from 127.0.0.1 ended without a hello")
	})
	assert.Empty(t, r.changes.all())
}

// A member that is expelled learns why and does not come back.
func TestExpelledMembersEnd(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	lost := make(chan error, 1)
	_, id := r.connect(joining{ClientOptions: ClientOptions{Lost: func(err error) { lost <- err }}})
	require.NoError(t, r.authority.Expel(id))
	require.NoError(t, r.server.Expel(id, "it sent nonsense"))
	err := receive(t, lost)
	require.EqualError(t, err, "the coordinator has expelled this member: it sent nonsense")
	assert.True(t, usererror.Is(err))
	r.changes.eventually(t, "dropped "+id)
	assert.Empty(t, r.server.Members())
	require.ErrorIs(t, r.server.Expel(id, ""), ErrUnknownMember)
}

// A member that ignores its expulsion finds its connection closed, and another one refused.
func TestExpelledMembersAreDisconnected(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	i := r.begin("mallory")
	require.NoError(t, r.authority.Expel(i.id))
	require.NoError(t, r.server.Expel(i.id, "it sent nonsense"))
	i.errs.eventually(t, "the coordinator has expelled this member: it sent nonsense")
	require.Eventually(t, func() bool { return !i.session.Connected() }, hang, time.Millisecond)
}

func TestOtherBuildsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	_, err := r.try(joining{ClientOptions: ClientOptions{Build: "v2"}})
	var mismatch *identity.MismatchError
	require.ErrorAs(t, err, &mismatch)
	assert.Equal(t, identity.MismatchError{What: "build", Coordinator: testBuild, Member: "v2"}, *mismatch)
	assert.True(t, usererror.Is(err), "exits with code 2")
	r.notes.eventually(t, mismatch.Error())
	assert.Empty(t, r.server.Members())
}

// A message that no honest member sends ends the session, with the reason in the coordinator's log, and keeps the
// member out for a while.
func TestMalformedMessages(t *testing.T) {
	t.Parallel()
	body := [][]byte{nil}
	for name, c := range map[string]struct {
		m    transport.Message
		note string
	}{
		"short": {transport.Message{Header: []byte{1}, Payload: body},
			"found a header of 1 bytes and 1 tensors, expected at least 9 and 1"},
		"no body": {transport.Message{Header: make([]byte, 9)}, "found a header of 9 bytes and 0 tensors"},
		"kind":    {transport.Message{Header: append([]byte{99}, make([]byte, 8)...), Payload: body}, "found kind 99, expected 1 to 5"},
		"no name": {message{kind: messageRequest}.encode(), "name: expected one for a request"},
		"a name":  {message{kind: messageReply, name: "x"}.encode(), "name: expected one for a request, and none otherwise"},
		"a long name": {message{kind: messageRequest, name: strings.Repeat("x", maxName+1)}.encode(),
			"name: found 201 bytes, expected at most 200"},
		"a request":       {message{kind: messageRequest, name: "x"}.encode(), "found a message of kind 1, expected a reply"},
		"end of the run":  {message{kind: messageEnd}.encode(), "found a message of kind 5, expected a reply"},
		"several tensors": {transport.Message{Header: make([]byte, 9), Payload: [][]byte{nil, nil}}, "and 2 tensors"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun(t)
			i := r.begin("mallory")
			require.NoError(t, i.session.Send(c.m))
			r.notes.eventually(t, i.id+": refused: ")
			r.notes.eventually(t, c.note)
			r.changes.eventually(t, "dropped "+i.id)
			again := r.intrude(i.id, i.config, honest)
			again.errs.eventually(t, "the member is blocked for a while")
			assert.Empty(t, r.server.Members())
		})
	}
	t.Run("hello", func(t *testing.T) {
		t.Parallel()
		r := newRun(t)
		c := r.credentials("mallory")
		i := r.intrude(c.Identity().ID, c.TLS(), hello{Protocol: identity.Protocol, Build: testBuild, Info: make([]byte, maxInfo+1)})
		i.errs.eventually(t, "malformed hello")
		r.notes.eventually(t, i.id+": refused: malformed hello")
	})
}

// A member that sends more messages than any honest one is cut off and stays out for a while; others do not notice.
func TestFloods(t *testing.T) {
	t.Parallel()
	r := newRunWith(t, transport.DefaultSilence, 100)
	_, good := r.connect(joining{setup: func(c *Client) { c.Handle("echo", echo) }})
	i := r.begin("mallory")
	flood := message{kind: messageReply}
	for range 10_000 {
		_ = flood.send(i.session) // until the session has ended
	}
	r.notes.eventually(t, i.id+": refused: more than 100 messages a second")
	r.changes.eventually(t, "dropped "+i.id)
	_, err := r.server.Request(t.Context(), good, "echo", nil)
	require.NoError(t, err)
}

// What crosses the wire shows neither names nor data.
func TestNoPlaintext(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	captured := &capture{}
	c, id := r.connect(joining{dial: captured.dial, info: []byte("INFO-MARK"), setup: func(c *Client) {
		c.Handle("verb-mark", func(context.Context, []byte) ([]byte, error) { return []byte("REPLY-MARK"), nil })
	}})
	_, err := r.server.Request(t.Context(), id, "verb-mark", []byte("REQUEST-MARK"))
	require.NoError(t, err)
	require.NoError(t, c.close())
	text := captured.text()
	require.Greater(t, len(text), 1000)
	for _, mark := range []string{"INFO", "Transport", "PRI * HTTP", id, "mark", "MARK", "gpupipe://", testBuild} {
		assert.NotContains(t, text, mark)
	}
}

// capture records what a connection carries in both directions.
type capture struct{ notes }

type capturedConn struct {
	net.Conn
	c *capture
}

func (c *capture) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	return &capturedConn{conn, c}, err
}

func (c *capturedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.c.note("%s", b[:n])
	return n, err
}

func (c *capturedConn) Write(b []byte) (int, error) {
	c.c.note("%s", b)
	return c.Conn.Write(b)
}

func (c *capture) text() string { return strings.Join(c.all(), "") }
