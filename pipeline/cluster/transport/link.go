package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// Codes of refusals.
const (
	codeEarly    = codes.OutOfRange         // the epoch has not begun
	codeState    = codes.FailedPrecondition // the states of the two sides do not fit
	codeIdentity = codes.PermissionDenied   // not a member, or not the one that it claims to be
	codeAbort    = codes.Aborted            // the link is over for the epoch
	codeOver     = codes.NotFound           // the peer has begun another epoch: no fault
	codeLeft     = codes.DataLoss           // the peer has closed its node: it does not come back in this epoch
)

// link carries messages to and from a peer for one epoch, over one connection after the other.
type link struct {
	node        *Node
	peer        Peer
	epoch       uint64
	dials       bool
	incarnation uint64
	out         [classes]*outbox
	in          [classes]*inbox
	done        chan struct{} // closed when the link is over

	mu    sync.Mutex
	state linkState
}

// linkState is what changes with the connections of a link.
type linkState struct {
	session     *session      // the present one, or nil
	connections int           // so far
	theirs      uint64        // incarnation of the peer, once known
	period      time.Duration // for which the link waits for a connection
	grace       *time.Timer   // runs while there is none
	trouble     error         // why there is no connection
	over        error         // why the link is over
	trips       roundTrips
}

func newLink(n *Node, p Peer, epoch uint64, dials bool) *link {
	l := &link{node: n, peer: p, epoch: epoch, dials: dials, incarnation: randomNumber(), done: make(chan struct{}),
		state: linkState{period: n.options.Grace}}
	for c := range classes {
		l.out[c], l.in[c] = newOutbox(), newInbox(c, n.options.MaxMessage)
	}
	return l
}

// start begins to deliver, to dial and to count the grace period.
func (l *link) start() {
	for c := range classes {
		l.node.work.Go(func() {
			l.in[c].deliver(l.done, func(m Message) {
				m.Epoch = l.epoch
				l.node.options.Receive(l.peer.ID, m)
			})
		})
	}
	if l.dials {
		l.node.work.Go(l.dial)
	}
	l.mu.Lock()
	l.startGrace()
	l.mu.Unlock()
}

// startGrace is called with mu held.
func (l *link) startGrace() {
	if l.state.over != nil || l.state.grace != nil {
		return
	}
	period := l.state.period
	l.state.grace = time.AfterFunc(period, func() {
		l.mu.Lock()
		late := l.state.session != nil || l.state.over != nil
		trouble := l.state.trouble
		l.mu.Unlock()
		if late {
			return
		}
		if trouble == nil {
			trouble = errors.New("it has not dialed")
		}
		l.fail(fmt.Errorf("no connection for %v: %w", period, trouble))
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
			return fmt.Errorf("transport: %d bytes to member %q are not acknowledged: %w", o.statistics().unacknowledged, l.peer.ID, ctx.Err())
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
	for c, i := range l.in {
		h.received[c] = i.accepted()
	}
	return h
}

// attach makes s the session of the link, in place of the one before, whose peer has sent h.
func (l *link) attach(s *session, h hello) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state.over != nil:
		return refusalf(codeAbort, "the link is over: %v", l.state.over)
	case l.state.theirs != 0 && l.state.theirs != h.incarnation && l.state.session != nil:
		return refusalf(codeState, "another process of member %s is connected", l.peer.ID)
	case l.state.theirs != 0 && l.state.theirs != h.incarnation:
		return violationf("member %s was restarted within epoch %d", l.peer.ID, l.epoch)
	}
	if l.state.session != nil {
		l.state.session.end(refusalf(codeState, "member %s has dialed again", l.peer.ID))
	}
	l.state.connections++
	s.number = l.state.connections
	for c, o := range l.out {
		if err := o.resume(s.number, h.received[c]); err != nil {
			return err
		}
	}
	l.state.session, l.state.theirs, l.state.trouble = s, h.incarnation, nil
	if l.state.grace != nil {
		l.state.grace.Stop()
		l.state.grace = nil
	}
	return nil
}

// detach ends the link's use of a session that has ended.
func (l *link) detach(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.session == s {
		l.state.session, l.state.trouble = nil, s.cause()
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
	var r *refusal
	if errors.As(err, &v) || errors.As(err, &r) && (r.code == codeAbort || r.code == codeLeft) {
		l.fail(err)
	}
}

// fail ends the link within its epoch and reports the peer as lost.
func (l *link) fail(err error) {
	if !l.finish(err, refusalf(codeAbort, "%v", err)) {
		return
	}
	l.node.spawn(func() { l.node.options.Lost(l.peer.ID, err) })
}

// end ends the link with its epoch.
func (l *link) end(reason *refusal) { l.finish(reason, reason) }

// finish ends the link once.
func (l *link) finish(err error, reason *refusal) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.over != nil {
		return false
	}
	l.state.over = err
	if l.state.grace != nil {
		l.state.grace.Stop()
	}
	if l.state.session != nil {
		l.state.session.end(reason)
	}
	close(l.done)
	for _, o := range l.out {
		o.clear()
	}
	return true
}

func (l *link) statistics() []Link {
	l.mu.Lock()
	least := l.state.trips.least()
	common := Link{Peer: l.peer.ID, Connected: l.state.session != nil, Reconnects: int64(max(0, l.state.connections-1)),
		Latency: Latency{l.state.trips.smoothed, least.roundTrip, least.offset}}
	l.mu.Unlock()
	var all []Link
	for c := range classes {
		k, out := common, l.out[c].statistics()
		k.Class, k.BytesSent, k.MessagesSent, k.Unacknowledged, k.Wait, k.Resent = c, out.bytes, out.messages, out.unacknowledged, out.wait, out.resent
		k.BytesReceived, k.MessagesReceived = l.in[c].statistics()
		all = append(all, k)
	}
	return all
}
