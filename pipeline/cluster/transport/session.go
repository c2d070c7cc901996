package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
)

// Sessions says how a node has sessions. A session is a link that outlives epochs: from the first hello until one side
// ends it, over any number of connections. A member opens one with its coordinator ([Node.Open]); the coordinator takes
// those that Begin accepts. Its messages of class Urgent belong to no epoch. Those of the other classes belong to the
// epoch in which they were sent, as messages of other links do.
//
// The functions are called while no lock of the node is held. None of them may close the node.
type Sessions struct {
	// Begin takes the session that a peer begins, before anything else happens to it. With an error there is no
	// session; the peer gets it as a *Refusal, of code Refused if it is another error. nil: the node accepts no
	// sessions.
	Begin func(s *Session, greeting []byte) error
	// Receive takes a message of class Urgent, as Options.Receive takes others.
	Receive func(s *Session, m Message)
	// Ended says that the session is over, unless this side has ended it: why is a *Refusal of the peer, or what the
	// peer did that no honest one does (IsViolation).
	Ended func(s *Session, why error)
	// Welcomed says, on the side that dials, that the session has begun. No message arrives before it returns.
	Welcomed func(s *Session)
	// Failed says, on the side that dials, why an attempt to connect has failed. There will be others.
	Failed func(s *Session, why error)
}

func (o Sessions) withDefaults() Sessions {
	if o.Receive == nil {
		o.Receive = func(*Session, Message) {}
	}
	if o.Ended == nil {
		o.Ended = func(*Session, error) {}
	}
	if o.Welcomed == nil {
		o.Welcomed = func(*Session) {}
	}
	if o.Failed == nil {
		o.Failed = func(*Session, error) {}
	}
	return o
}

// Session is an end of a session.
type Session struct {
	link     *link
	greeting []byte        // of one that this side begins
	carries  atomic.Uint64 // epoch whose tensors it brings; 0: none
}

// newSession makes the session with a peer, and its link.
func newSession(n *Node, p Peer, dials bool) *Session {
	s := &Session{}
	s.link = newLink(n, p, 0, dials)
	s.link.session = s
	s.link.state.heard = time.Now()
	for _, c := range []Class{Hot, Bulk} {
		s.link.in[c].fragments.wanted = func(epoch uint64) bool { return epoch != 0 && epoch == s.carries.Load() }
	}
	return s
}

// Open begins a session with a peer, in place of the one before, and keeps it connected until one side ends it. It does
// not wait for a connection. The greeting, of at most 128 KiB, is for the peer's Begin.
func (n *Node) Open(p Peer, greeting []byte) (*Session, error) {
	if len(greeting) > maxGreeting {
		return nil, fmt.Errorf("transport: a greeting of %d bytes, expected at most %d", len(greeting), maxGreeting)
	}
	s := newSession(n, p, true)
	s.greeting = greeting
	if err := n.keep(s); err != nil {
		return nil, err
	}
	return s, nil
}

// newEpoch begins an epoch; 0: the peer is not in it.
func (s *Session) newEpoch(epoch uint64) {
	s.carries.Store(epoch)
	s.link.newEpoch()
}

// keep makes a session the one with its peer, and starts it.
func (n *Node) keep(s *Session) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	if before := n.sessions[s.Peer()]; before != nil {
		before.link.end(refusalf(Forgotten, "another session has begun"))
	}
	n.sessions[s.Peer()] = s
	s.link.start()
	return nil
}

// Sessions begin and go on at most that often for one peer.
const (
	hellosPerSecond = 1
	hellosBurst     = 20
)

// admit returns the link of the session that a hello begins, or goes on with.
func (n *Node) admit(h hello, member string) (*link, error) {
	if n.options.Sessions.Begin == nil {
		return nil, refusalf(codeIdentity, "member %s accepts no sessions", n.options.Self)
	}
	n.admitting.Lock()
	defer n.admitting.Unlock()
	s, err := n.known(member)
	if err != nil {
		return nil, err
	}
	switch goesOn := s != nil && s.link.theirs() == h.incarnation && (h.known == 0 || h.known == s.link.incarnation); {
	case goesOn:
		return s.link, nil
	case h.known != 0:
		return nil, refusalf(Forgotten, "member %s does not know this session", n.options.Self)
	}
	s = newSession(n, Peer{ID: member}, false)
	s.link.state.theirs = h.incarnation
	if err := n.options.Sessions.Begin(s, h.greeting); err != nil {
		if r := (*Refusal)(nil); errors.As(err, &r) {
			return nil, r
		}
		return nil, &Refusal{Refused, err.Error()}
	}
	return s.link, n.keep(s)
}

// known returns the session with a peer that says hello; nil: there is none.
func (n *Node) known(member string) (*Session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, refusalf(Left, hasLeft)
	}
	limiter := n.hellos[member]
	if limiter == nil {
		limiter = rate.NewLimiter(hellosPerSecond, hellosBurst)
		n.hellos[member] = limiter
	}
	if !limiter.Allow() {
		return nil, refusalf(codeState, "member %s connects too often", member)
	}
	if s := n.sessions[member]; s != nil && !s.link.isOver() {
		return s, nil
	}
	return nil, nil
}

// Peer is the ID of the other side.
func (s *Session) Peer() string { return s.link.peer.ID }

// Send enqueues a message of class Urgent and never blocks. The message must not be changed afterwards.
func (s *Session) Send(m Message) error {
	m.Class = Urgent
	if err := checkMessage(m, s.link.node.options.limit(Urgent)); err != nil {
		return fmt.Errorf("transport: to member %q: %w", s.Peer(), err)
	}
	return s.link.send(m)
}

// Waiting is how many bytes of messages of class Urgent the peer has not acknowledged.
func (s *Session) Waiting() int64 { return s.link.out[Urgent].statistics().unacknowledged }

// Connected reports whether there is a connection.
func (s *Session) Connected() bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.link.state.connection != nil
}

// Trouble is why there is no connection; nil: there is one, or none was tried.
func (s *Session) Trouble() error {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.link.state.trouble
}

// Heard is when the last byte of the peer arrived, on any of the session's connections.
func (s *Session) Heard() time.Time { return s.link.heard() }

// Settle waits until the peer has all messages of class Urgent, as long as there is a connection.
func (s *Session) Settle(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.Connected() {
		select {
		case <-s.link.out[Urgent].empty():
			return
		case <-s.link.done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Clock is the difference between the clocks of the peer and of this process, by the pings of the last seconds. It
// waits for the first one.
func (s *Session) Clock(ctx context.Context) (Clock, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s.link.mu.Lock()
		c, ok := s.link.state.trips.clock()
		s.link.mu.Unlock()
		if ok {
			return c, nil
		}
		select {
		case <-s.link.done:
			return Clock{}, fmt.Errorf("transport: member %q: the session has ended", s.Peer())
		case <-ctx.Done():
			return Clock{}, fmt.Errorf("transport: member %q: no ping is answered: %w", s.Peer(), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Leave ends the session: this side does not come back.
func (s *Session) Leave() { s.End(Left, hasLeft) }

// Part waits, after the session has ended and on the side that dials, until the peer knows that or cannot be told.
func (s *Session) Part() { <-s.link.undialed }

const hasLeft = "the member has left"

// End ends the session for a reason that the peer gets as a *Refusal: Left, Forgotten or Expelled.
func (s *Session) End(code Code, reason string) {
	s.link.end(&Refusal{code, reason})
	s.link.node.dismiss(s)
}

// dismiss forgets a session that has ended, unless another has begun in its place.
func (n *Node) dismiss(s *Session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sessions[s.Peer()] == s {
		delete(n.sessions, s.Peer())
	}
}

// IsViolation reports whether a peer has broken the protocol as no honest one does.
func IsViolation(err error) bool {
	var v *violation
	return errors.As(err, &v)
}

// Code is the code of a Refusal.
type Code = codes.Code
