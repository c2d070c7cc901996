//go:build !js

package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

const (
	defaultRetain       = time.Minute
	startTimeout        = time.Minute // inside this process, which may be starved
	maxConnections      = 1024
	maxPending          = 256 << 20       // bytes that NATS holds for one connection; the windows of sessions are the stricter limit
	handshakeTimeout    = 5 * time.Second // for a handshake, and for the first command
	connectsPerSec      = 1               // of one member, beyond a burst
	connectsBurst       = 20
	handshakesPerSecond = 200 // of all connections
)

// ServerOptions configures [Serve].
type ServerOptions struct {
	Address     string // host:port; no host: all addresses; port 0: any free one
	Credentials *identity.Credentials
	Build       string
	Lease       time.Duration // 0: 5 s
	Retain      time.Duration // how long the session of a lost member is kept; 0: one minute
	Note        func(format string, args ...any)

	handshakeTimeout time.Duration // and of the first command; 0: 5 s
	maxFrames        int           // a second, of one member; 0: framesPerSecond
}

// Server is the coordinator's end of the control connections.
type Server struct {
	o        ServerOptions
	instance uint64
	secret   string // by which the server's own connection authenticates inside the process
	server   *server.Server
	nats     *nats.Conn
	port     int
	loops    sync.WaitGroup
	done     chan struct{}
	gate     *gate

	mu       sync.Mutex
	sessions map[string]*memberSession // by member
	watchers map[*watcher]bool
	closed   bool
}

// Serve starts the control server of a run.
func Serve(o ServerOptions) (*Server, error) {
	if role := o.Credentials.Identity().Role; role != identity.RoleCoordinator {
		return nil, fmt.Errorf("control: found credentials of a %s, expected the coordinator's", role)
	}
	o.Lease, o.Retain = cmp.Or(o.Lease, defaultLease), cmp.Or(o.Retain, defaultRetain)
	o.handshakeTimeout = cmp.Or(o.handshakeTimeout, handshakeTimeout)
	o.maxFrames = cmp.Or(o.maxFrames, framesPerSecond)
	o.Note = identity.LimitNotes(o.Note)
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	s := &Server{o: o, instance: randomID(), secret: hex.EncodeToString(secret[:]), done: make(chan struct{}),
		sessions: map[string]*memberSession{}, watchers: map[*watcher]bool{}}
	s.gate = &gate{secret: s.secret, identify: o.Credentials.Identify, note: o.Note, kick: s.kick, connections: map[string]*memberConnections{}}
	if err := s.start(); err != nil {
		s.stop()
		return nil, err
	}
	s.loops.Go(s.watchLeases)
	return s, nil
}

// Instance returns the ID of this process, new at each start.
func (s *Server) Instance() string { return fmt.Sprintf("%016x", s.instance) }

// Port returns the port that the server listens on.
func (s *Server) Port() int { return s.port }

// options returns the configuration of the NATS server. What is not named here is off: JetStream, clusters, monitoring,
// WebSocket, accounts, files, signals.
func (s *Server) options(host string, port int) *server.Options {
	return &server.Options{
		ServerName: "gpupipe", Host: host, Port: port,
		NoSigs: true, NoLog: true, NoSystemAccount: true, NoHeaderSupport: true,
		TLS: true, TLSVerify: true, TLSConfig: s.tlsConfig(), TLSHandshakeFirst: true,
		TLSTimeout: s.o.handshakeTimeout.Seconds(), AuthTimeout: s.o.handshakeTimeout.Seconds(),
		CustomClientAuthentication: s.gate,
		MaxPayload:                 maxFrame, MaxPending: maxPending, MaxConn: maxConnections, MaxSubs: 4, MaxControlLine: 4096,
		PingInterval: 2 * time.Second, MaxPingsOut: 2, WriteDeadline: 20 * time.Second,
	}
}

// tlsConfig admits members only, and a limited number of handshakes a second. The NATS server's own limit (TLSRateLimit)
// is for servers that are started from a configuration file: it crashes an embedded one.
func (s *Server) tlsConfig() *tls.Config {
	config := s.o.Credentials.TLS(identity.RoleMember)
	limiter := rate.NewLimiter(handshakesPerSecond, 2*handshakesPerSecond)
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if !limiter.Allow() {
			return nil, fmt.Errorf("more than %d connections a second", handshakesPerSecond)
		}
		return nil, nil // go on with this configuration
	}
	return config
}

func (s *Server) start() error {
	host, portText, err := net.SplitHostPort(s.o.Address)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return fmt.Errorf("control: %s: found port %q, expected a number", s.o.Address, portText)
	}
	hosts := []string{host}
	if host == "" {
		hosts = []string{"::", "0.0.0.0"} // the second for systems without IPv6
	}
	for _, h := range hosts {
		if err = s.startAt(h, cmp.Or(int(port), server.RANDOM_PORT)); err == nil {
			return s.connectSelf()
		}
	}
	return fmt.Errorf("control: listen at %s: %w", s.o.Address, err)
}

func (s *Server) startAt(host string, port int) error {
	n, err := server.NewServer(s.options(host, port))
	if err != nil {
		return err
	}
	failed := make(chan string, 1)
	n.SetLoggerV2(natsLog{s.o.Note, failed}, true, false, false)
	s.server = n
	n.Start()
	for deadline := time.Now().Add(startTimeout); ; {
		if n.ReadyForConnections(10 * time.Millisecond) {
			break
		}
		select {
		case text := <-failed:
			n.Shutdown()
			n.WaitForShutdown()
			return errors.New(text)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server is not ready after %v", startTimeout)
		}
	}
	address, ok := n.Addr().(*net.TCPAddr)
	if !ok {
		return errors.New("the server has no TCP address")
	}
	s.port = address.Port
	return nil
}

// connectSelf opens the coordinator's own connection, inside the process.
func (s *Server) connectSelf() error {
	o := nats.Options{InProcessServer: s.server, User: identity.CoordinatorID, Password: s.secret, Timeout: startTimeout,
		AllowReconnect: true, MaxReconnect: -1, ReconnectWait: 10 * time.Millisecond, IgnoreAuthErrorAbort: true,
		SubChanLen: 64 << 10, AsyncErrorCB: func(_ *nats.Conn, _ *nats.Subscription, err error) { s.o.Note("control: %v", err) }}
	var err error
	if s.nats, err = o.Connect(); err != nil {
		return fmt.Errorf("control: connect inside the process: %w", err)
	}
	subscription, err := s.nats.Subscribe(subjectUp+"*", func(m *nats.Msg) { s.receive(strings.TrimPrefix(m.Subject, subjectUp), m.Data) })
	if err == nil {
		err = subscription.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = s.nats.FlushTimeout(startTimeout)
	}
	return err
}

// Attach serves a connection that reached this process in another way, such as through a WebSocket. TLS runs on top of
// it, from end to end, as on any other connection. Attach returns when the connection ends, and closes it.
func (s *Server) Attach(c net.Conn) error {
	defer c.Close()
	host, _, err := net.SplitHostPort(s.server.Addr().String())
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip.Equal(net.IPv4zero) {
		host = "127.0.0.1"
	} else if ip.IsUnspecified() {
		host = "::1"
	}
	inner, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(s.port)), startTimeout)
	if err != nil {
		return fmt.Errorf("control: attach: %w", err)
	}
	defer inner.Close()
	ended := make(chan error, 2)
	go func() { _, err := io.Copy(inner, c); ended <- err }()
	go func() { _, err := io.Copy(c, inner); ended <- err }()
	err = <-ended
	_ = c.Close()
	_ = inner.Close()
	<-ended
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) publish(member string, f frame) {
	if err := s.nats.Publish(subjectDown+member, f.append(make([]byte, 0, frameHeader+len(f.body)))); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.o.Note("control: %s: %v", member, err)
	}
}

// kick closes connections of a member.
func (s *Server) kick(ids []uint64) {
	for _, id := range ids {
		_ = s.server.DisconnectClientByID(id)
	}
}

// Close is End without a reason.
func (s *Server) Close() error { return s.End(Ending{}) }

// maxEnding is how many bytes of the text of an ending members get.
const maxEnding = 4 << 10

// End ends the run for all members: their [ClientOptions.Lost] gets an [*EndedError]. It waits for running functions
// that this package calls, and is not called from them.
func (s *Server) End(e Ending) error {
	e.Text = strings.ToValidUTF8(e.Text[:min(len(e.Text), maxEnding)], "")
	for _, m := range s.all() {
		s.publish(m.id, frame{kind: frameBye, session: m.session, instance: s.instance, body: encodeJSON(bye{Closed: true, Ending: e})})
	}
	if s.nats != nil {
		_ = s.nats.FlushTimeout(goodbyeTimeout)
	}
	return s.Abandon()
}

// Abandon stops the server without a word, as if its process were killed. Members wait for a coordinator at the same
// address until their timeout is over.
func (s *Server) Abandon() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for w := range s.watchers {
		s.unwatch(w)
	}
	s.mu.Unlock()
	close(s.done)
	for _, m := range s.all() {
		m.end("the control server is closed")
	}
	s.stop()
	s.loops.Wait()
	return nil
}

func (s *Server) stop() {
	if s.nats != nil {
		s.nats.Close()
	}
	if s.server != nil {
		s.server.Shutdown()
		s.server.WaitForShutdown()
	}
}

func (s *Server) all() []*memberSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*memberSession
	for _, m := range s.sessions {
		all = append(all, m)
	}
	return all
}

func (s *Server) member(id string) (*memberSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.sessions[id]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("member %.60q: %w", id, ErrUnknownMember)
}

// Request sends a request to a member and waits for the answer, as long as the context allows. The member handles it
// after all that was sent to it before. An outage delays the answer. An error of the handler is a [*RemoteError]; if
// the session ends first, the error is a [*LostError]. The caller does not change request before Request returns.
func (s *Server) Request(ctx context.Context, member, name string, request []byte) ([]byte, error) {
	m, err := s.member(member)
	if err != nil {
		return nil, err
	}
	reply, err := m.request(ctx, name, request)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", name, err)
	}
	return reply, nil
}

// Clock measures the difference between the clock of a member and that of this process.
func (s *Server) Clock(ctx context.Context, member string) (Clock, error) {
	m, err := s.member(member)
	if err != nil {
		return Clock{}, err
	}
	return m.clock(ctx)
}

// natsLog passes on what the NATS server has to say of connections that it refuses.
type natsLog struct {
	note   func(format string, args ...any)
	failed chan string
}

func (natsLog) Warnf(string, ...any)                {} // of its configuration
func (natsLog) Noticef(string, ...any)              {}
func (natsLog) Tracef(string, ...any)               {}
func (l natsLog) Errorf(format string, args ...any) { l.note("control: "+format, explainAll(args)...) }

// Debugf passes on the refusals that NATS takes for probes of a load balancer.
func (l natsLog) Debugf(format string, args ...any) {
	text := fmt.Sprintf(format, explainAll(args)...)
	if strings.Contains(text, "TLS handshake error") || strings.Contains(text, "Authentication Timeout") {
		l.note("control: %s", text)
	}
}

func (l natsLog) Fatalf(format string, args ...any) {
	select {
	case l.failed <- fmt.Sprintf(format, args...):
	default:
	}
}

func explainAll(args []any) []any {
	for i, a := range args {
		if err, ok := a.(error); ok {
			args[i] = identity.Explain(err)
		}
	}
	return args
}

// same compares two secrets in constant time.
func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
