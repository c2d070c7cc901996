//go:build !js

package control

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// raw connects to the NATS server as an attacker does who holds a configuration of TLS.
func (r *run) raw(config *tls.Config, options ...nats.Option) (*nats.Conn, *notes, error) {
	refused := &notes{}
	options = append(options, nats.Secure(config), nats.TLSHandshakeFirst(), nats.MaxReconnects(0), nats.Timeout(2*time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused.note("%v", err) }))
	c, err := nats.Connect("tls://"+r.address(), options...)
	if err == nil {
		r.t.Cleanup(c.Close)
	}
	return c, refused, err
}

// A member's certificate allows its own two subjects and nothing else, whatever user name the client gives.
func TestPermissions(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	_, victim := r.connect(ClientOptions{Setup: func(c *Client) { c.Handle("echo", echo) }})
	mallory := r.credentials("mallory")
	own := mallory.Identity().ID
	c, refused, err := r.raw(mallory.TLS(identity.RoleCoordinator), nats.UserInfo(victim, "x"), nats.Name(victim))
	require.NoError(t, err)
	var overheard notes
	for _, subject := range []string{">", "*", "up.>", "up.*", "up." + own, "up." + victim, "down.*", "down.>", "down." + victim, "*." + own, "$SYS.>", "_INBOX.>", "$JS.>"} {
		_, err := c.Subscribe(subject, func(m *nats.Msg) { overheard.note("%s", m.Subject) })
		require.NoError(t, err)
		require.NoError(t, c.Flush())
		refused.eventually(t, `Permissions Violation for Subscription to "`+subject+`"`)
		r.notes.eventually(t, `user:`+own+`" - Subscription Violation - Subject "`+subject+`"`)
	}
	_, err = c.QueueSubscribe("down."+victim, "queue", func(m *nats.Msg) { overheard.note("%s", m.Subject) })
	require.NoError(t, err)
	goodbye := frame{kind: frameGoodbye, session: 1}.append(nil)
	for _, subject := range []string{"up." + victim, "down." + own, "down." + victim, "up." + own + ".x", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO", "$JS.API.INFO"} {
		require.NoError(t, c.Publish(subject, goodbye))
		require.NoError(t, c.Flush())
		refused.eventually(t, `Permissions Violation for Publish to "`+subject+`"`)
		r.notes.eventually(t, `user:`+own+`" - Publish Violation - Subject "`+subject+`"`)
	}
	receive(t, r.ask(victim, "echo", "secret"))
	require.NoError(t, c.Flush())
	assert.Empty(t, overheard.all())
	assert.Equal(t, []string{"joined " + victim}, r.changes.all())
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
	for name, c := range map[string]struct {
		config *tls.Config
		client identity.Code
		server string
	}{
		"no certificate":            {none, identity.NoCertificate, "the other side sent no certificate"},
		"another CA":                {trusting, identity.OtherCA, "the certificate of the other side comes from the CA of another run"},
		"another run's coordinator": {stranger.TLS(), identity.OtherRun, "the other side refuses this certificate"},
		"a coordinator as member":   {coordinator.TLS(), identity.OtherRun, "expected the role [member]"},
		"expelled":                  {expelled.TLS(), identity.OtherRun, "member " + expelled.Identity().ID + " is excluded from the run"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := r.raw(c.config)
			require.Error(t, err)
			var refused *identity.Refused
			require.ErrorAs(t, explain(err), &refused, "%v", err)
			assert.Equal(t, c.client, refused.Code, "%v", err)
			r.notes.eventually(t, c.server)
		})
	}
	t.Run("through Connect", func(t *testing.T) {
		_, err := Connect(t.Context(), ClientOptions{Addresses: []string{r.address()}, Credentials: expelled})
		require.ErrorContains(t, err, "the other side refuses this certificate")
		assert.True(t, usererror.Is(err), "exits with code 2")
		_, err = Connect(t.Context(), ClientOptions{Addresses: []string{r.address()}, Credentials: stranger})
		assert.True(t, usererror.Is(err), "%v", err)
		_, err = Connect(t.Context(), ClientOptions{Addresses: []string{"127.0.0.1:1"}, Credentials: member, Timeout: time.Millisecond})
		require.Error(t, err)
		assert.False(t, usererror.Is(err), "the coordinator may only be away: %v", err)
	})
	t.Run("no TLS", func(t *testing.T) {
		c, err := net.Dial("tcp", r.address())
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "CONNECT {\"user\":\"coordinator\"}\r\nPING\r\n")
		require.NoError(t, err)
		text, _ := io.ReadAll(c)
		assert.NotContains(t, string(text), "INFO")
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
	t.Run("slow first command", func(t *testing.T) {
		c, err := tls.Dial("tcp", r.address(), member.TLS())
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "CONNECT {")
		require.NoError(t, err)
		text, _ := io.ReadAll(c)
		assert.Contains(t, string(text), "-ERR 'Authentication Timeout'")
		r.notes.eventually(t, "Authentication Timeout")
	})
	assert.Empty(t, r.changes.all())
}

// A member that is expelled learns why and does not come back.
func TestExpelledMembersEnd(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	lost := make(chan error, 1)
	_, id := r.connect(ClientOptions{Lost: func(err error) { lost <- err }})
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
	id, _, c := r.begin("mallory")
	require.NoError(t, r.authority.Expel(id))
	require.NoError(t, r.server.Expel(id, "it sent nonsense"))
	require.Eventually(t, func() bool { return !c.IsConnected() }, hang, time.Millisecond)
}

func TestOtherBuildsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	_, err := Connect(t.Context(), ClientOptions{Addresses: []string{r.address()}, Credentials: r.credentials("m"), Build: "v2"})
	var mismatch *identity.MismatchError
	require.ErrorAs(t, err, &mismatch)
	assert.Equal(t, identity.MismatchError{What: "build", Coordinator: testBuild, Member: "v2"}, *mismatch)
	assert.True(t, usererror.Is(err), "exits with code 2")
	r.notes.eventually(t, mismatch.Error())
	assert.Empty(t, r.server.Members())
}

// begin opens a session by hand and returns a function that sends frames in it.
func (r *run) begin(name string) (id string, send func(frame), c *nats.Conn) {
	r.t.Helper()
	credentials := r.credentials(name)
	id = credentials.Identity().ID
	c, _, err := r.raw(credentials.TLS(identity.RoleCoordinator))
	require.NoError(r.t, err)
	send = func(f frame) {
		f.session, f.instance = 7, r.server.instance
		require.NoError(r.t, c.Publish("up."+id, f.append(nil)))
	}
	send(frame{kind: frameHello, body: encodeJSON(hello{Protocol: identity.Protocol, Build: testBuild})})
	r.changes.eventually(r.t, "joined "+id)
	return id, send, c
}

// Frames of a member that lies end its session, with the reason in the coordinator's log.
func TestMalformedFrames(t *testing.T) {
	t.Parallel()
	header := func(name string, total uint32) []byte {
		b := []byte{pieceFirst | pieceLast, byte(messageRequest), 0, 0, 0, 0, 0, 0, 0, 1, byte(len(name))}
		return binary.BigEndian.AppendUint32(append(b, name...), total)
	}
	for name, c := range map[string]struct {
		f    frame
		note string
	}{
		"2 GB declared": {frame{kind: framePiece, sequence: 1, body: header("x", 2<<30)}, "found 2147483648 bytes, expected at most 33554432"},
		"lying size":    {frame{kind: framePiece, sequence: 1, body: header("x", 9)}, "piece: malformed"},
		"no name":       {frame{kind: framePiece, sequence: 1, body: header("", 0)}, "piece: malformed"},
		"no header":     {frame{kind: framePiece, sequence: 1, body: []byte{1}}, "piece: malformed"},
		"no body":       {frame{kind: framePiece, sequence: 1}, "piece: malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRun(t)
			id, send, _ := r.begin("mallory")
			send(c.f)
			r.notes.eventually(t, id+": refused: ")
			r.notes.eventually(t, c.note)
			r.changes.eventually(t, "dropped "+id)
		})
	}
	t.Run("kind", func(t *testing.T) {
		r := newRun(t)
		id, send, _ := r.begin("mallory")
		send(frame{kind: 99})
		r.notes.eventually(t, id+": refused: frame: found kind 99, expected 1 to 12")
	})
	t.Run("too large for NATS", func(t *testing.T) {
		r := newRun(t)
		id, _, c := r.begin("mallory")
		err := c.Publish("up."+id, make([]byte, maxFrame+1))
		require.ErrorIs(t, err, nats.ErrMaxPayload)
	})
}

// A member that sends more frames than any honest one is cut off and stays out for a while; others do not notice.
func TestFloods(t *testing.T) {
	t.Parallel()
	r := newRunWith(t, defaultLease, 100)
	_, honest := r.connect(ClientOptions{Setup: func(c *Client) { c.Handle("echo", echo) }})
	id, _, c := r.begin("mallory")
	flood := frame{kind: frameAck, session: 7, instance: r.server.instance}.append(nil)
	for c.IsConnected() {
		_ = c.Publish("up."+id, flood)
	}
	r.notes.eventually(t, id+": refused: more than 100 frames a second")
	r.changes.eventually(t, "dropped "+id)
	_, err := r.server.Request(t.Context(), honest, "echo", nil)
	require.NoError(t, err)
}

// What crosses the wire shows neither names nor data.
func TestNoPlaintext(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	captured := &capture{}
	c, id := r.connect(ClientOptions{Dial: captured.dial, Info: []byte("INFO-MARK"), Setup: func(c *Client) {
		c.Handle("verb-mark", func(context.Context, []byte) ([]byte, error) { return []byte("REPLY-MARK"), nil })
	}})
	_, err := r.server.Request(t.Context(), id, "verb-mark", []byte("REQUEST-MARK"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	text := captured.text()
	require.Greater(t, len(text), 1000)
	for _, mark := range []string{"INFO", "CONNECT", "PUB", "MSG", id, "mark", "MARK", "gpupipe://", testBuild} {
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

// A connection that came in another way, such as through a WebSocket, is served like others: TLS runs inside it.
func TestAttach(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	attached := make(chan error, 8)
	dial := func(context.Context, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() { attached <- r.server.Attach(server) }()
		return client, nil
	}
	c, id := r.connect(ClientOptions{Dial: dial, Addresses: []string{"coordinator:1"}, Setup: func(c *Client) { c.Handle("echo", echo) }})
	reply, err := r.server.Request(t.Context(), id, "echo", []byte("x"))
	require.NoError(t, err)
	assert.Equal(t, "x", string(reply))
	require.NoError(t, c.Close())
	receive(t, attached)
	stranger, err := identity.NewAuthority()
	require.NoError(t, err)
	credentials, err := stranger.Member("mallory")
	require.NoError(t, err)
	_, err = Connect(t.Context(), ClientOptions{Dial: dial, Addresses: []string{"coordinator:1"}, Credentials: credentials})
	var refused *identity.Refused
	require.ErrorAs(t, err, &refused)
}

// FuzzServerReceive feeds the coordinator frames of a member: as they are, and as pieces of an open session.
func FuzzServerReceive(f *testing.F) {
	a, err := identity.NewAuthority()
	require.NoError(f, err)
	credentials, err := a.Coordinator()
	require.NoError(f, err)
	s, err := Serve(ServerOptions{Address: "127.0.0.1:0", Credentials: credentials, Build: testBuild, maxFrames: 1 << 30})
	require.NoError(f, err)
	f.Cleanup(func() { _ = s.Close() })
	begin := frame{kind: frameHello, session: 7, body: encodeJSON(hello{Protocol: identity.Protocol, Build: testBuild})}
	f.Add(begin.append(nil), uint8(0))
	f.Add([]byte{pieceFirst | pieceLast, byte(messageReply), 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}, uint8(framePiece))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		s.receive("m-1", begin.append(nil))
		s.receive("m-1", b)
		s.receive("m-1", frame{kind: frameKind(kind), session: 7, instance: s.instance, sequence: 1, body: b}.append(nil))
		if _, err := s.member("m-1"); err == nil {
			_ = s.Drop("m-1", "the next input")
		}
	})
}

// FuzzClientReceive feeds a member frames of its coordinator.
func FuzzClientReceive(f *testing.F) {
	a, err := identity.NewAuthority()
	require.NoError(f, err)
	credentials, err := a.Coordinator()
	require.NoError(f, err)
	s, err := Serve(ServerOptions{Address: "127.0.0.1:0", Credentials: credentials, Build: testBuild})
	require.NoError(f, err)
	f.Cleanup(func() { _ = s.Close() })
	member, err := a.Member("m")
	require.NoError(f, err)
	c, err := Connect(f.Context(), ClientOptions{Addresses: []string{"127.0.0.1:" + strconv.Itoa(s.Port())}, Credentials: member, Build: testBuild})
	require.NoError(f, err)
	f.Cleanup(func() { _ = c.Close() })
	f.Add(encodeJSON(welcome{LeaseMillis: 1000}), uint8(frameWelcome))
	f.Add([]byte{pieceFirst | pieceLast, byte(messageRequest), 0, 0, 0, 0, 0, 0, 0, 1, 1, 'x', 0, 0, 0, 0}, uint8(framePiece))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		c.receive(b)
		if frameKind(kind) == frameBye {
			var ended bye
			_ = json.Unmarshal(b, &ended)
			_ = ended.err().Error()
			return
		}
		c.mu.Lock()
		session := c.session.session
		c.mu.Unlock()
		c.receive(frame{kind: frameKind(kind), session: session, instance: s.instance, sequence: 1, body: b}.append(nil))
	})
}
