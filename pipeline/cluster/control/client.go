package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

const (
	subjectUp   = "up."
	subjectDown = "down."

	defaultTimeout  = time.Minute
	connectTimeout  = 5 * time.Second
	writeTimeout    = 10 * time.Second
	reconnectPause  = 250 * time.Millisecond
	helloInterval   = 500 * time.Millisecond
	goodbyeTimeout  = 5 * time.Second
	notedEvery      = 10 * time.Second // while there is no connection
	defaultLease    = 5 * time.Second
	renewalsOfLease = 5 // renewals in the time of a lease
)

// Handler answers a request of the coordinator. The context ends when the coordinator no longer waits, and when the
// session ends.
type Handler func(ctx context.Context, request []byte) (reply []byte, err error)

// ClientOptions configures [Connect].
type ClientOptions struct {
	Addresses   []string // of the control server, host:port
	Credentials *identity.Credentials
	Build       string
	Info        []byte        // what the coordinator should know about the member, at most 64 KiB
	Timeout     time.Duration // without word from the coordinator, while this process runs, until Lost is called; 0: one minute

	// Setup registers handlers before the first request can arrive.
	Setup func(c *Client)
	// Lost is called once, when the coordinator has not answered for Timeout, has ended the run, or refuses the member.
	Lost func(err error)
	// Restarted is called when the coordinator no longer knows this member's session, since it has restarted (its
	// instance is another then) or has given the member up. Everything that was queued and every request is dropped
	// before, and nothing arrives until Restarted returns.
	Restarted func(instance string)
	// Dial makes connections; nil: TCP. TLS runs on top of it.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	Note func(format string, args ...any)
}

// Client is a member's end of the control connection.
type Client struct {
	o    ClientOptions
	id   string
	nats *nats.Conn

	loops sync.WaitGroup
	hurry chan struct{} // says hello now
	first chan struct{} // closed at the first welcome
	done  chan struct{} // closed when the client ends

	mu       sync.Mutex
	handlers map[string]handler
	session  *clientSession
	contact  contact
	ended    error // why the client has ended; nil: it has not
}

type handler struct {
	f          Handler
	concurrent bool
}

// Connect connects a member to the coordinator and waits until it is welcomed.
func Connect(ctx context.Context, o ClientOptions) (*Client, error) {
	if len(o.Info) > maxInfo {
		return nil, fmt.Errorf("info: found %d bytes, expected at most %d", len(o.Info), maxInfo)
	}
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	c := &Client{o: o, id: o.Credentials.Identity().ID, handlers: map[string]handler{}, contact: newContact(),
		first: make(chan struct{}), hurry: make(chan struct{}, 1), done: make(chan struct{})}
	if o.Setup != nil {
		o.Setup(c)
	}
	c.newSession()
	if err := c.connect(ctx); err != nil {
		c.end(err)
		return nil, err
	}
	c.loops.Go(c.renew)
	select {
	case <-c.first:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("connect: %w", c.ended)
	case <-ctx.Done():
		c.end(ctx.Err())
		return nil, fmt.Errorf("connect: no welcome from the coordinator: %w", ctx.Err())
	}
}

// clientSession is a session of a member.
type clientSession struct {
	*stream
	mailbox *mailbox

	mu       sync.Mutex
	requests map[uint64]context.CancelFunc
}

// newSession replaces the session by a new one. The caller holds c.mu or the only reference.
func (c *Client) newSession() {
	if c.session != nil {
		c.session.end()
	}
	s := &clientSession{mailbox: newMailbox(), requests: map[uint64]context.CancelFunc{}}
	pace := rate.NewLimiter(framesPerSecond/2, framesPerSecond/4)
	s.stream = newStream(randomID(), 0, func(f frame) {
		_ = pace.Wait(context.Background())
		c.publish(f)
	})
	c.session = s
	c.loops.Go(func() { s.mailbox.run(s.stopped) })
}

// end stops the session and cancels its requests.
func (s *clientSession) end() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.requests {
		cancel()
	}
}

// randomID returns a number that is not 0.
func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// dialer connects nats.go to ClientOptions.Dial.
type dialer func(ctx context.Context, address string) (net.Conn, error)

func (d dialer) Dial(_, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	return d(ctx, address)
}

// connect connects to the coordinator. If that does not answer, it may be starting again, so there are further attempts.
func (c *Client) connect(ctx context.Context) error {
	deadline := time.Now().Add(c.o.Timeout)
	var noted time.Time
	for {
		err := c.connectOnce()
		if err == nil || usererror.Is(err) || time.Now().After(deadline) {
			return err
		}
		if now := time.Now(); now.Sub(noted) >= notedEvery {
			noted = now
			c.o.Note("control: %v; trying again for %v", err, deadline.Sub(now).Round(time.Second))
		}
		select {
		case <-time.After(reconnectPause):
		case <-ctx.Done():
			return err
		}
	}
}

func (c *Client) connectOnce() error {
	dial := c.o.Dial
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	var servers []string
	for _, a := range c.o.Addresses {
		servers = append(servers, "tls://"+a)
	}
	o := nats.Options{
		Servers: servers, NoRandomize: true, IgnoreDiscoveredServers: true, SkipHostLookup: true, Name: c.id,
		Secure: true, TLSConfig: c.o.Credentials.TLS(identity.RoleCoordinator), TLSHandshakeFirst: true,
		CustomDialer: dialer(dial), Timeout: connectTimeout, FlusherTimeout: writeTimeout,
		AllowReconnect: true, MaxReconnect: -1, IgnoreAuthErrorAbort: true, ReconnectBufSize: -1,
		CustomReconnectDelayCB: func(int) time.Duration { return reconnectPause },
		PingInterval:           20 * time.Second, // renewals find silent connections sooner
		SubChanLen:             64 << 10,
		DisconnectedErrCB:      func(_ *nats.Conn, err error) { c.disconnected(err) },
		ReconnectErrCB:         func(_ *nats.Conn, err error) { c.disconnected(err) },
		ReconnectedCB:          func(*nats.Conn) { c.sayHello() },
		AsyncErrorCB:           func(_ *nats.Conn, _ *nats.Subscription, err error) { c.o.Note("control: %v", err) },
	}
	var err error
	if c.nats, err = o.Connect(); err != nil {
		return fmt.Errorf("connect to %v: %w", c.o.Addresses, explain(err))
	}
	subscription, err := c.nats.Subscribe(subjectDown+c.id, func(m *nats.Msg) { c.receive(m.Data) })
	if err == nil {
		err = subscription.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = c.nats.FlushTimeout(connectTimeout)
	}
	if err != nil {
		c.nats.Close()
		return fmt.Errorf("connect to %v: %w", c.o.Addresses, explain(err))
	}
	return nil
}

// explain says in plain words why the coordinator or this member refused a connection. It marks refusals that are the
// user's.
func explain(err error) error {
	if errors.Is(err, nats.ErrAuthorization) {
		err = &identity.Refused{Code: identity.OtherRun, Reason: "the coordinator refuses this member: its log says why"}
	}
	err = identity.Explain(err)
	var refused *identity.Refused
	if errors.As(err, &refused) && slices.Contains(ofUser, refused.Code) {
		return usererror.New(err)
	}
	return err
}

// ofUser are the refusals that end only if the user does something: joins again, or sets a clock.
var ofUser = []identity.Code{identity.OtherCA, identity.OtherRun, identity.NoCertificate, identity.Expired, identity.Expelled}

func (c *Client) publish(f frame) {
	err := c.nats.Publish(subjectUp+c.id, f.append(make([]byte, 0, frameHeader+len(f.body))))
	if errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) {
		return // the stream sends it again on the next connection
	}
	if err != nil {
		c.o.Note("control: %v", err)
	}
}

// disconnected stops the stream until the coordinator welcomes the member on the next connection.
func (c *Client) disconnected(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contact.disconnected(err)
	c.session.pause()
}

func (c *Client) sayHello() {
	select {
	case c.hurry <- struct{}{}:
	default:
	}
}

// renew says hello until the coordinator welcomes the member, then renews the lease.
func (c *Client) renew() {
	for {
		pause, ok := c.renewOnce()
		if !ok {
			return
		}
		select {
		case <-time.After(pause):
		case <-c.hurry:
		case <-c.done:
			return
		}
	}
}

func (c *Client) renewOnce() (pause time.Duration, ok bool) {
	c.mu.Lock()
	s, silent, now := c.session, c.contact.silent(), c.contact
	resume := s.knownInstance() != 0
	c.mu.Unlock()
	pause = now.lease / renewalsOfLease
	if silent > c.o.Timeout {
		go c.lost(fmt.Errorf("the coordinator has not answered for %v: %w", silent.Round(time.Millisecond), cmp.Or(now.lastErr, errSilent)))
		return 0, false
	}
	if now.welcomed && silent > 3*pause {
		c.o.Note("control: no answer for %v: connecting again", silent.Round(time.Millisecond))
		c.disconnected(errSilent)
		_ = c.nats.ForceReconnect()
		return pause, true
	}
	if now.welcomed {
		c.publish(s.frame(frameRenew, nil))
		return pause, true
	}
	c.publish(s.frame(frameHello, encodeJSON(hello{Protocol: identity.Protocol, Build: c.o.Build, Resume: resume, Info: c.o.Info})))
	return min(pause, helloInterval), true
}

var errSilent = errors.New("the connection is silent")

// receive handles a frame from the coordinator. NATS calls it from one goroutine.
func (c *Client) receive(b []byte) {
	f, err := decodeFrame(b)
	if err != nil {
		c.o.Note("control: %v", err)
		return
	}
	c.mu.Lock()
	s := c.session
	if f.session != s.session {
		c.mu.Unlock()
		return // for another process with this certificate, or for an earlier session
	}
	c.contact.heard()
	c.mu.Unlock()
	switch f.kind {
	case frameWelcome:
		c.welcome(f)
	case frameForgotten:
		c.forgotten()
	case frameBye:
		var b bye
		_ = json.Unmarshal(f.body, &b)
		go c.lost(b.err())
	case framePing:
		c.pong(s, f)
	case frameAck, frameResend:
		s.acknowledge(f.acknowledged, f.kind == frameResend)
	case frameRenewed:
		s.acknowledgeRenewal(f.acknowledged)
	case framePiece:
		c.receivePiece(s, f)
	}
}

func (c *Client) welcome(f frame) {
	var w welcome
	if err := json.Unmarshal(f.body, &w); err != nil || w.LeaseMillis < 1 || w.LeaseMillis > 3600_000 {
		c.o.Note("control: malformed welcome")
		return
	}
	c.mu.Lock()
	s := c.session
	s.setInstance(f.instance)
	again, restarted := c.contact.welcome(time.Duration(w.LeaseMillis) * time.Millisecond)
	c.mu.Unlock()
	if again {
		return // the answer to a second hello
	}
	if restarted && c.o.Restarted != nil {
		c.o.Restarted(fmt.Sprintf("%016x", f.instance))
	}
	s.resume(f.acknowledged)
	select {
	case <-c.first:
	default:
		close(c.first)
	}
}

// forgotten begins a new session, since the coordinator does not know the present one.
func (c *Client) forgotten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	c.newSession()
	c.contact.restart()
	c.sayHello()
}

// pong answers with the member's time when the ping came and when the answer leaves.
func (c *Client) pong(s *clientSession, f frame) {
	received := time.Now()
	if len(f.body) != pingSize {
		return
	}
	body := append(make([]byte, 0, pongSize), f.body...)
	body = binary.BigEndian.AppendUint64(body, uint64(received.UnixNano()))
	body = binary.BigEndian.AppendUint64(body, uint64(time.Now().UnixNano()))
	c.publish(s.frame(framePong, body))
}

func (c *Client) receivePiece(s *clientSession, f frame) {
	s.acknowledge(f.acknowledged, false)
	m, complete, err := s.take(f)
	if err != nil {
		c.o.Note("control: the coordinator sent a malformed stream: %v", err)
		c.forgotten()
		return
	}
	if complete {
		c.deliver(s, m)
	}
}

// lost ends the client and reports it.
func (c *Client) lost(err error) {
	if c.end(err) && c.o.Lost != nil {
		select {
		case <-c.first:
			c.o.Lost(err)
		default: // Connect returns the error
		}
	}
}

// end closes the connection because of an error. It reports whether this call did.
func (c *Client) end(err error) bool {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return false
	}
	c.ended = err
	c.session.end()
	c.mu.Unlock()
	close(c.done)
	if c.nats != nil {
		c.nats.Close()
	}
	return true
}

// Instance returns the ID of the coordinator's process.
func (c *Client) Instance() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%016x", c.session.knownInstance())
}

// Close waits up to five seconds until the coordinator has the replies that were given, says goodbye and ends the client.
// Running handlers are canceled. Lost is not called.
func (c *Client) Close() error {
	for deadline := time.Now().Add(goodbyeTimeout); ; {
		c.mu.Lock()
		s, connected, ended := c.session, c.contact.welcomed, c.ended != nil
		c.mu.Unlock()
		if ended {
			break
		}
		if !connected || s.idle() || time.Now().After(deadline) {
			c.publish(s.frame(frameGoodbye, nil))
			_ = c.nats.FlushTimeout(goodbyeTimeout)
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.end(errors.New("the client is closed"))
	c.loops.Wait()
	return nil
}
