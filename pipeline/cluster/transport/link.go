package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// ErrUnreachable is the error of messages to a peer that there has never been a connection with in the epoch.
var ErrUnreachable = errors.New("no connection")

// Codes of refusals. gRPC itself sends none of them.
const (
	codeEarly    = codes.OutOfRange         // the epoch has not begun
	codeState    = codes.FailedPrecondition // the states of the two sides do not fit
	codeIdentity = codes.PermissionDenied   // not a member, or not the one that it claims to be
	codeAbort    = codes.Aborted            // the link is over for the epoch
	codeOver     = codes.NotFound           // the peer has begun another epoch: no fault

	Left      = codes.DataLoss        // the peer has closed its node, or has ended the session: it does not come back
	Forgotten = codes.AlreadyExists   // the peer does not know the session, or has ended it; another may begin
	Expelled  = codes.Unauthenticated // the peer has ended the session for good
	Refused   = codes.InvalidArgument // the peer does not begin a session
)

// isRefusal reports whether a code is one of those above.
func isRefusal(c codes.Code) bool {
	return slices.Contains([]codes.Code{codeEarly, codeState, codeIdentity, codeAbort, codeOver, Left, Forgotten, Expelled, Refused}, c)
}

// link carries messages to and from a peer over one connection after the other: for one epoch, or for a session.
type link struct {
	node        *Node
	peer        Peer
	session     *Session // that the link is of; nil: it is of an epoch
	neighbor    bool     // the epoch belongs to two neighbors
	epoch       uint64
	dials       bool
	incarnation uint64
	out         [classes]*outbox
	in          [classes]*inbox
	begun       chan struct{} // closed by the first connection
	done        chan struct{} // closed when the link is over
	undialed    chan struct{} // closed when this side dials no more, and the peer knows why

	mu    sync.Mutex
	state linkState
}

// linkState is what changes with the connections of a link.
type linkState struct {
	connection  *connection   // the present one, or nil
	connections int           // so far
	earlier     int           // of these: before the present epoch
	heard       time.Time     // when the last connection brought its last byte
	theirs      uint64        // incarnation of the peer, once known
	period      time.Duration // for which the link waits for a connection
	grace       *time.Timer   // runs while there is none
	trouble     error         // why there is no connection
	over        error         // why the link is over
	trips       roundTrips
}

func newLink(n *Node, p Peer, epoch uint64, dials bool) *link {
	l := &link{node: n, peer: p, epoch: epoch, dials: dials, incarnation: randomNumber(), begun: make(chan struct{}),
		done: make(chan struct{}), undialed: make(chan struct{}), state: linkState{period: n.options.Grace}}
	for c := range classes {
		l.out[c], l.in[c] = newOutbox(), newInbox(c, n.options.limit(c))
	}
	return l
}

// newEpoch drops what a session carries of the epoch before, and its statistics.
func (l *link) newEpoch() {
	for c := range classes {
		if c != Urgent {
			l.out[c].abandon()
			l.in[c].forget()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.earlier = max(0, l.state.connections-1)
}

// start begins to deliver, to dial and to count the grace period.
func (l *link) start() {
	for c := range classes {
		l.node.work.Go(func() {
			if c == Urgent && !l.welcomed() {
				return
			}
			l.in[c].deliver(l.done, func(m Message) { l.receive(m) })
		})
	}
	if l.dials {
		l.node.work.Go(l.dial)
	}
	l.mu.Lock()
	l.startGrace()
	l.mu.Unlock()
}

// welcomed waits for the first connection of a session that this side has opened. It returns false if there is none.
func (l *link) welcomed() bool {
	if l.session == nil || !l.dials {
		return true
	}
	select {
	case <-l.begun:
		l.node.options.Sessions.Welcomed(l.session)
		return true
	case <-l.done:
		return false
	}
}

// receive hands a message on.
func (l *link) receive(m Message) {
	switch {
	case l.session == nil:
		m.Epoch = l.epoch
		l.node.options.Receive(l.peer.ID, m)
	case m.Class == Urgent:
		l.node.options.Sessions.Receive(l.session, m)
	default:
		l.node.options.Receive(l.peer.ID, m)
	}
}

// startGrace is called with mu held. A session has no grace period, since who uses it decides when the peer is lost,
// and neighbors need not reach each other.
func (l *link) startGrace() {
	if l.session != nil || l.neighbor || l.state.over != nil || l.state.grace != nil {
		return
	}
	period := l.state.period
	l.state.grace = time.AfterFunc(period, func() {
		l.mu.Lock()
		late, connections, trouble := l.state.connection != nil || l.state.over != nil, l.state.connections, l.state.trouble
		l.mu.Unlock()
		if late {
			return
		}
		if trouble == nil {
			trouble = errors.New("it has not dialed")
		}
		ended := errors.New("no connection")
		if connections == 0 {
			ended = ErrUnreachable
		}
		l.fail(fmt.Errorf("%w for %v: %w", ended, period, trouble))
	})
}

func (l *link) send(m Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.over != nil {
		return fmt.Errorf("transport: member %q: %w", l.peer.ID, l.state.over)
	}
	l.out[m.Class].push(m)
	return nil
}

func (l *link) flush(ctx context.Context) error {
	for _, o := range l.out {
		select {
		case <-o.empty():
		case <-ctx.Done():
			if !isClosed(l.begun) {
				return fmt.Errorf("transport: member %q: %w: %w", l.peer.ID, ErrUnreachable, ctx.Err())
			}
			return fmt.Errorf("transport: %d bytes to member %q are not acknowledged: %w", o.statistics().unacknowledged, l.peer.ID,
				ctx.Err())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.over != nil {
		return fmt.Errorf("transport: member %q: %w", l.peer.ID, l.state.over)
	}
	return nil
}

// hello is what a hello says of the link.
func (l *link) hello() hello {
	h := hello{version: protocolVersion, from: l.node.options.Self, to: l.peer.ID, epoch: l.epoch, incarnation: l.incarnation}
	h.received = l.received()
	if l.session != nil {
		if h.known = l.theirs(); h.known == 0 {
			h.greeting = l.session.greeting
		}
	}
	return h
}

// received is how many fragments of each class have arrived.
func (l *link) received() (counts [classes]uint64) {
	for c, i := range l.in {
		counts[c] = i.accepted()
	}
	return counts
}

// theirs is the incarnation of the peer; 0: it is not known yet.
func (l *link) theirs() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.theirs
}

func (l *link) isOver() bool { return isClosed(l.done) }

// heard is when the peer was last heard.
func (l *link) heard() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.connection != nil {
		return l.state.connection.conn.heard()
	}
	return l.state.heard
}

// attach makes s the connection of the link, in place of the one before, whose peer has sent h.
func (l *link) attach(s *connection, h hello) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state.over != nil:
		return refusalf(codeAbort, "the link is over: %v", l.state.over)
	case l.state.theirs != 0 && l.state.theirs != h.incarnation && l.state.connection != nil:
		return refusalf(codeState, "another process of member %s is connected", l.peer.ID)
	case l.state.theirs != 0 && l.state.theirs != h.incarnation:
		return violationf("member %s was restarted within epoch %d", l.peer.ID, l.epoch)
	}
	if l.state.connection != nil {
		l.state.connection.end(refusalf(codeState, "member %s has dialed again", l.peer.ID))
	}
	if l.state.connections++; l.state.connections == 1 {
		close(l.begun)
	}
	s.number = l.state.connections
	for c, o := range l.out {
		l.in[c].resume(s.number)
		if err := o.resume(s.number, h.received[c]); err != nil {
			return err
		}
	}
	l.state.connection, l.state.theirs, l.state.trouble = s, h.incarnation, nil
	if l.state.grace != nil {
		l.state.grace.Stop()
		l.state.grace = nil
	}
	return nil
}

// detach ends the link's use of a connection that has ended.
func (l *link) detach(s *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.connection == s {
		for _, i := range l.in {
			i.resume(noConnection)
		}
		l.state.connection, l.state.trouble, l.state.heard = nil, s.cause(), s.conn.heard()
		l.startGrace()
	}
}

// remember keeps why an attempt to connect failed.
func (l *link) remember(err error) {
	l.mu.Lock()
	l.state.trouble = err
	l.mu.Unlock()
}

// failOn ends the link if an error is one that another connection would meet again.
func (l *link) failOn(err error) {
	var v *violation
	var r *Refusal
	final := []codes.Code{codeAbort, Left}
	if l.session != nil {
		final = []codes.Code{codeAbort, Forgotten, Expelled, Refused}
		if !l.dials {
			final = append(final, Left) // who dials waits for the other side to start again
		}
	}
	if errors.As(err, &v) || errors.As(err, &r) && slices.Contains(final, r.Code) {
		l.mu.Lock()
		first := l.session == nil && l.state.connections == 0
		l.mu.Unlock()
		if first && r != nil && r.Code == codeAbort { // the peer's grace period has ended
			err = fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		l.fail(err)
	}
}

// fail ends the link before its time and reports that.
func (l *link) fail(err error) {
	if !l.finish(err, refusalf(codeAbort, "%v", err)) {
		return
	}
	if l.session != nil {
		l.node.dismiss(l.session)
		l.node.options.Sessions.Ended(l.session, err)
		return
	}
	if l.neighbor {
		l.node.notes.add("the link with %s, of another replica, has ended: %v", l.peer.ID, err)
		return
	}
	l.node.spawn(func() { l.node.options.Lost(l.peer.ID, err) })
}

// end ends the link with its epoch, or with its session.
func (l *link) end(reason *Refusal) { l.finish(reason, reason) }

// finish ends the link once.
func (l *link) finish(err error, reason *Refusal) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.over != nil {
		return false
	}
	l.state.over = err
	if l.state.grace != nil {
		l.state.grace.Stop()
	}
	if l.state.connection != nil {
		l.state.connection.end(reason)
	}
	close(l.done)
	for c, o := range l.out {
		o.clear()
		l.in[c].clear()
	}
	return true
}

func (l *link) statistics() []Link {
	l.mu.Lock()
	common := Link{Peer: l.peer.ID, Connected: l.state.connection != nil, RoundTrip: l.state.trips.smoothed,
		Reconnects: int64(max(0, l.state.connections-1-l.state.earlier))}
	l.mu.Unlock()
	var all []Link
	for c := range classes {
		k, out := common, l.out[c].statistics()
		k.Class, k.BytesSent, k.MessagesSent, k.Unacknowledged, k.Wait, k.Resent = c, out.bytes, out.messages, out.unacknowledged,
			out.wait, out.resent
		k.BytesReceived, k.MessagesReceived = l.in[c].statistics()
		all = append(all, k)
	}
	return all
}
