package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

const (
	defaultTimeout = time.Minute
	anewPause      = 250 * time.Millisecond // before a new session
	goodbyeTimeout = 5 * time.Second
	notedEvery     = 10 * time.Second // while there is no connection
)

// Handler answers a request of the coordinator. The context ends when the coordinator no longer waits, and when the
// session ends.
type Handler func(ctx context.Context, request []byte) (reply []byte, err error)

// ClientOptions configures [NewClient].
type ClientOptions struct {
	Build   string
	Timeout time.Duration // without word from the coordinator, while this process runs, until Lost is called; 0: one minute

	// Lost is called once, when the coordinator has not answered for Timeout, has ended the run, or expels the member.
	Lost func(err error)
	// Restarted is called when the coordinator no longer knows this member's session, since it has restarted or has
	// given the member up. Every request is canceled before, and none arrives until Restarted returns.
	Restarted func()
	Note      func(format string, args ...any)
}

// Client is a member's end of its session with the coordinator. A node with [Client.Sessions] carries it.
type Client struct {
	o     ClientOptions
	loops sync.WaitGroup
	first chan struct{} // closed at the first welcome
	done  chan struct{} // closed when the client ends

	mu       sync.Mutex
	handlers map[string]handler
	open     func() (*transport.Session, error) // begins a session
	session  *clientSession                     // nil: none yet
	contact  contact
	ended    error // why the client has ended; nil: it has not
}

type handler struct {
	f          Handler
	concurrent bool
}

// contact is what a client knows of its contact with the coordinator.
type contact struct {
	welcomed bool      // once
	heard    time.Time // the last byte
	silence  silence   // since then
	noted    time.Time // when it was noted last
}

// NewClient makes a client. Its handlers are registered before [Client.Connect].
func NewClient(o ClientOptions) *Client {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	return &Client{o: o, handlers: map[string]handler{}, contact: contact{silence: newSilence()}, first: make(chan struct{}),
		done: make(chan struct{})}
}

// Sessions are for the options of the member's node.
func (c *Client) Sessions() transport.Sessions {
	return transport.Sessions{Receive: c.receive, Ended: c.sessionEnded, Welcomed: c.welcomed, Failed: c.failed}
}

// maxInfo is the most bytes of what a member says of itself.
const maxInfo = 64 << 10

// Connect begins a session with the coordinator and waits until it is welcomed. A coordinator that does not answer may
// be starting again: Connect waits for it as long as the timeout allows. The coordinator learns info, at most 64 KiB.
func (c *Client) Connect(ctx context.Context, n *transport.Node, coordinator transport.Peer, info []byte) error {
	if len(info) > maxInfo {
		return fmt.Errorf("info: found %d bytes, expected at most %d", len(info), maxInfo)
	}
	greeting := encodeJSON(hello{Protocol: identity.Protocol, Build: c.o.Build, Info: info})
	c.mu.Lock()
	c.open = func() (*transport.Session, error) { return n.Open(coordinator, greeting) }
	c.mu.Unlock()
	if err := c.begin(); err != nil {
		c.end(err)
		return err
	}
	c.loops.Go(c.watch)
	select {
	case <-c.first:
		return nil
	case <-c.done:
		return fmt.Errorf("connect to %v: %w", coordinator.Addresses, c.ended)
	case <-ctx.Done():
		c.end(ctx.Err())
		return fmt.Errorf("connect: no welcome from the coordinator: %w", ctx.Err())
	}
}

// clientSession is a session of a member.
type clientSession struct {
	session *transport.Session
	mailbox *mailbox
	stopped chan struct{} // closed when the session has ended

	mu       sync.Mutex
	requests map[uint64]context.CancelFunc
}

// begin begins a session, unless the client has ended.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	session, err := c.open()
	if err != nil {
		return err
	}
	s := &clientSession{session: session, mailbox: newMailbox(), stopped: make(chan struct{}), requests: map[uint64]context.CancelFunc{}}
	c.session = s
	c.loops.Go(func() { s.mailbox.run(s.stopped) })
	return nil
}

// end cancels the requests of a session.
func (s *clientSession) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.stopped:
		return
	default:
	}
	close(s.stopped)
	for _, cancel := range s.requests {
		cancel()
	}
}

// of returns the state of a session; nil: it has ended.
func (c *Client) of(session *transport.Session) *clientSession {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil && c.session.session == session {
		return c.session
	}
	return nil
}

// receive takes a message of the coordinator.
func (c *Client) receive(session *transport.Session, t transport.Message) {
	s := c.of(session)
	if s == nil {
		return
	}
	m, err := decode(t)
	if err != nil {
		c.o.Note("control: %v", err)
		return
	}
	c.deliver(s, m)
}

// welcomed reports a session that replaces another, before its first request.
func (c *Client) welcomed(session *transport.Session) {
	if c.of(session) == nil {
		return
	}
	c.mu.Lock()
	again := c.contact.welcomed
	c.contact.welcomed = true
	c.mu.Unlock()
	if !again {
		close(c.first)
	} else if c.o.Restarted != nil {
		c.o.Restarted()
	}
}

// failed notes, before the first welcome, why the coordinator cannot be reached. It ends the client if waiting does
// not help.
func (c *Client) failed(_ *transport.Session, why error) {
	err := explain(why)
	c.mu.Lock()
	welcomed, left := c.contact.welcomed, c.o.Timeout-c.contact.silence.length
	now := time.Now()
	note := !welcomed && now.Sub(c.contact.noted) >= notedEvery
	if note {
		c.contact.noted = now
	}
	c.mu.Unlock()
	switch {
	case !welcomed && usererror.Is(err):
		c.loseSoon(err)
	case note:
		c.o.Note("control: %v; trying again for %v", err, left.Round(time.Second))
	}
}

// sessionEnded begins another session, unless the coordinator does not want one.
func (c *Client) sessionEnded(session *transport.Session, why error) {
	s := c.of(session)
	if s == nil {
		return
	}
	s.end()
	var r *transport.Refusal
	if errors.As(why, &r) && (r.Code == transport.Expelled || r.Code == transport.Refused) {
		c.loseSoon(explain(why))
		return
	}
	if transport.IsViolation(why) {
		c.o.Note("control: the coordinator sent what it never sends: %v", why)
	}
	c.start(func() {
		if !sleep.For(anewPause, c.done) {
			return
		}
		if err := c.begin(); err != nil {
			c.loseSoon(err)
		}
	})
}

// watch ends the client when the coordinator has not been heard for too long.
func (c *Client) watch() {
	const interval = transport.DefaultSilence / 5
	tick := time.NewTicker(min(interval, c.o.Timeout/5))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.done:
			return
		}
		if silent, cause := c.silent(transport.DefaultSilence); silent > c.o.Timeout {
			c.loseSoon(fmt.Errorf("the coordinator has not answered for %v: %w", silent.Round(time.Millisecond), cause))
			return
		}
	}
}

var errSilent = errors.New("the connection is silent")

// silent is how long a running process has heard nothing from the coordinator, and the last error.
func (c *Client) silent(longest time.Duration) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if heard := c.session.session.Heard(); c.contact.welcomed && heard.After(c.contact.heard) {
		c.contact.heard, c.contact.silence = heard, newSilence()
	}
	return c.contact.silence.measure(longest), cmp.Or(explain(c.session.session.Trouble()), errSilent)
}

// loseSoon is lost for functions that the node, or a loop of the client, calls.
func (c *Client) loseSoon(err error) { go c.lost(err) }

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

// end ends the session because of an error. It reports whether this call did.
func (c *Client) end(err error) bool {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return false
	}
	c.ended = err
	s := c.session
	c.mu.Unlock()
	close(c.done)
	if s != nil {
		s.end()
		s.session.Leave()
	}
	return true
}

// Close waits up to five seconds until the coordinator has the replies that were given, says goodbye and ends the
// client. The coordinator knows that before the member's links to others end. Running handlers are canceled. Lost is
// not called.
func (c *Client) Close() error {
	c.mu.Lock()
	s, ended := c.session, c.ended != nil
	c.mu.Unlock()
	if s != nil && !ended {
		ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
		s.session.Settle(ctx)
		cancel()
	}
	c.end(errors.New("the client is closed"))
	if s != nil {
		s.session.Part()
	}
	c.loops.Wait()
	return nil
}
