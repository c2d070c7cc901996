package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

// watchedConn is a TCP connection that remembers when its last byte arrived. While it is corked it collects what is
// written, because TLS writes records of 16 KiB and each would be a system call.
type watchedConn struct {
	net.Conn
	opened   time.Time
	lastRead atomic.Int64 // nanoseconds since opened
	greeted  atomic.Bool  // the peer has said a hello that was accepted
	once     sync.Once
	settled  func(closed bool)     // called once: when the peer has said hello or was refused, or on Close
	insecure atomic.Pointer[error] // the first error of TLS, which gRPC only quotes

	writing chan struct{} // holds a token while someone writes; a channel, so that time may pass for those who wait in a test
	corked  bool
	held    bytes.Buffer
}

func newWatchedConn(c net.Conn, settled func(closed bool)) *watchedConn {
	return &watchedConn{Conn: c, opened: time.Now(), settled: settled, writing: make(chan struct{}, 1)}
}

// settle ends the time in which the connection waits for its hello.
func (w *watchedConn) settle() { w.once.Do(func() { w.settled(false) }) }

func (w *watchedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.lastRead.Store(int64(time.Since(w.opened)))
	}
	return n, err
}

// heard is when the last byte arrived.
func (w *watchedConn) heard() time.Time { return w.opened.Add(time.Duration(w.lastRead.Load())) }

// silence is the time since the last byte arrived.
func (w *watchedConn) silence() time.Duration { return time.Since(w.heard()) }

// failed keeps the first error of TLS.
func (w *watchedConn) failed(err error) { w.insecure.CompareAndSwap(nil, &err) }

// explain returns the error of TLS behind an error of gRPC, if there is one.
func (w *watchedConn) explain(err error) error {
	if tls := w.insecure.Load(); err != nil && tls != nil {
		return *tls
	}
	return err
}

func (w *watchedConn) Write(b []byte) (int, error) {
	w.writing <- struct{}{}
	defer func() { <-w.writing }()
	if w.corked {
		return w.held.Write(b)
	}
	return w.Conn.Write(b)
}

func (w *watchedConn) cork() {
	w.writing <- struct{}{}
	w.corked = true
	<-w.writing
}

func (w *watchedConn) uncork() error {
	w.writing <- struct{}{}
	defer func() { <-w.writing }()
	w.corked = false
	_, err := w.Conn.Write(w.held.Bytes())
	w.held.Reset()
	return err
}

func (w *watchedConn) Close() error {
	w.once.Do(func() { w.settled(true) })
	return w.Conn.Close()
}

// secureConn is a TLS connection that passes the records of one write to the kernel together.
type secureConn struct {
	*tls.Conn
	raw *watchedConn
}

func (c *secureConn) Write(b []byte) (int, error) {
	c.raw.cork()
	n, err := c.Conn.Write(b)
	return n, errors.Join(err, c.raw.uncork())
}

// Read keeps the alert by which the other side refuses the certificate: under TLS 1.3 it comes after the handshake.
func (c *secureConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" {
		c.raw.failed(err)
	}
	return n, err
}

// connInfo is what the handshake of a connection found.
type connInfo struct {
	credentials.CommonAuthInfo
	conn   *watchedConn
	member string // that the peer's certificate names
	err    error  // why it names none
}

func (connInfo) AuthType() string { return "tls" }

// mutualTLS secures connections and identifies their peers. A peer whose certificate names no member is refused at the
// hello, not here, because the refusal of a hello carries a reason.
type mutualTLS struct{ node *Node }

func (m mutualTLS) handshake(ctx context.Context, raw net.Conn, secure func(net.Conn, *tls.Config) *tls.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	watched, ok := raw.(*watchedConn)
	if !ok {
		return nil, nil, fmt.Errorf("a connection of type %T", raw)
	}
	config := m.node.options.TLS.Clone()
	config.NextProtos, config.MinVersion, config.DynamicRecordSizingDisabled = []string{"h2"}, tls.VersionTLS13, true
	conn := secure(watched, config)
	ctx, cancel := context.WithTimeout(ctx, m.node.options.timing.hello)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		watched.failed(err)
		return nil, nil, err
	}
	state := conn.ConnectionState()
	if len(state.PeerCertificates) == 0 || state.NegotiatedProtocol != "h2" {
		return nil, nil, fmt.Errorf("%d certificates and protocol %q, expected a certificate and h2", len(state.PeerCertificates),
			state.NegotiatedProtocol)
	}
	info := connInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, conn: watched}
	info.member, info.err = m.node.options.Identify(state.PeerCertificates[0])
	return &secureConn{conn, watched}, info, nil
}

func (m mutualTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return m.handshake(ctx, raw, tls.Client)
}

func (m mutualTLS) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := m.handshake(context.Background(), raw, tls.Server)
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded // as of a connection whose deadline gRPC has set
	}
	if err != nil {
		m.node.notes.add("a connection from %s is refused: %v", host(raw.RemoteAddr()), m.node.options.Explain(err))
		if watched, ok := raw.(*watchedConn); ok {
			watched.settle()
		}
	}
	return conn, info, err
}

func (mutualTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls", SecurityVersion: "1.3"}
}

func (m mutualTLS) Clone() credentials.TransportCredentials { return m }

func (mutualTLS) OverrideServerName(string) error { return nil }

// host is an address without its port, which differs for each attempt.
func host(a net.Addr) string {
	if h, _, err := net.SplitHostPort(a.String()); err == nil {
		return h
	}
	return a.String()
}

const (
	maxPending          = 128 // connections that have not said hello
	handshakesPerSecond = 200 // of all connections, beyond a burst of twice as many
)

// guardedListener accepts connections, and closes those that are too many.
type guardedListener struct {
	net.Listener
	node       *Node
	pending    atomic.Int64 // connections that have not said hello
	handshakes *rate.Limiter
}

func newGuardedListener(l net.Listener, n *Node) *guardedListener {
	return &guardedListener{Listener: l, node: n, handshakes: rate.NewLimiter(handshakesPerSecond, 2*handshakesPerSecond)}
}

func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		switch {
		case l.pending.Add(1) > maxPending:
			l.node.notes.add("a connection from %s is refused: %d others have not said hello yet", host(c.RemoteAddr()), maxPending)
		case !l.handshakes.Allow():
			l.node.notes.add("a connection from %s is refused: more than %d a second", host(c.RemoteAddr()), handshakesPerSecond)
		default:
			tune(c, congestion)
			return l.guard(c), nil
		}
		l.pending.Add(-1)
		_ = c.Close()
	}
}

// guard closes a connection that does not say hello in time.
func (l *guardedListener) guard(c net.Conn) *watchedConn {
	limit := 2 * l.node.options.timing.hello
	timer := time.AfterFunc(limit, func() {
		_ = c.Close() // gRPC will close the rest
	})
	return newWatchedConn(c, func(closed bool) {
		timer.Stop()
		l.pending.Add(-1)
		if closed {
			l.node.notes.add("a connection from %s ended without a hello", host(c.RemoteAddr()))
		}
	})
}
