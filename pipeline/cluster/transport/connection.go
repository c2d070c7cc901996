package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connection is one connection of a link, after its hello.
type connection struct {
	link      *link
	conn      *watchedConn
	number    int           // of the link's connection, from 1
	done      chan struct{} // closed when it ends
	ack       chan struct{} // holds a token when an acknowledgment is due
	bulkToken chan struct{} // holds a token when a bulk fragment may be sent though there are hot ones
	pings     chan ping     // to be answered

	mu      sync.Mutex
	claimed [classes]bool // the streams that the peer has opened
	reason  error
	pulse   pulse
}

// pulse is what the connection last heard and asked.
type pulse struct {
	heard time.Time // when the last control message arrived
	pings []pinged  // the last maxPings that are not answered
}

// pinged is a ping under way.
type pinged struct {
	sent int64     // as it says
	at   time.Time // for what it measures
}

// maxPings is how many pings may be under way. Longer round trips measure nothing.
const maxPings = 8

func newConnection(l *link, conn *watchedConn) *connection {
	return &connection{link: l, conn: conn, done: make(chan struct{}), ack: make(chan struct{}, 1), bulkToken: make(chan struct{}, 1),
		pings: make(chan ping, 4), pulse: pulse{heard: time.Now()}}
}

// end ends the connection. The first reason counts.
func (s *connection) end(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == nil {
		s.reason = reason
		close(s.done)
	}
}

// cause is why the connection has ended.
func (s *connection) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

func (s *connection) ended() bool { return isClosed(s.done) }

// claim takes the stream of a class, which can be taken once.
func (s *connection) claim(class Class) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	claimed := s.claimed[class]
	s.claimed[class] = true
	return !claimed
}

// remoteError is why the peer, or the network, ended a stream.
type remoteError struct{ error }

func (e remoteError) Unwrap() error { return e.error }

// streamError explains an error of a stream. Limits that gRPC enforces are violations of the protocol.
func streamError(err error) error {
	st, _ := status.FromError(err)
	switch {
	case errors.Is(err, io.EOF):
		return remoteError{errors.New("the peer has closed the stream")}
	case st == nil:
		return err
	case st.Code() == codes.ResourceExhausted:
		return violationf("%s", st.Message())
	case isRefusal(st.Code()):
		return remoteError{&Refusal{st.Code(), st.Message()}}
	case st.Code() == codes.Canceled: // gRPC's "context canceled"
		return remoteError{errors.New("it is closed")}
	default:
		return remoteError{errors.New(st.Message())}
	}
}

// watch ends the connection when the peer falls silent. It returns when the connection has ended.
func (s *connection) watch() {
	t := s.link.node.options.timing
	ticker := time.NewTicker(t.silence / 20)
	defer ticker.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		stalled := time.Since(s.pulse.heard) > t.progress
		s.mu.Unlock()
		switch {
		case s.conn.silence() > t.silence:
			s.end(refusalf(codeState, "no byte from member %s for %v", s.link.peer.ID, t.silence))
		case stalled:
			s.end(refusalf(codeState, "no whole control message from member %s for %v", s.link.peer.ID, t.progress))
		}
	}
}

// controlPerSecond is how many control messages a side takes, beyond a burst of as many. It sends half as many at most.
const controlPerSecond = 20_000

// readControl handles the control messages of the peer.
func (s *connection) readControl(stream stream) {
	limiter := rate.NewLimiter(controlPerSecond, controlPerSecond)
	for {
		m, err := receiveControl(stream)
		switch {
		case err != nil:
			err = asViolation(err)
		case !limiter.Allow():
			err = violationf("more than %d control messages a second", controlPerSecond)
		default:
			err = s.handle(m)
		}
		if err != nil {
			s.end(err)
			return
		}
		s.mu.Lock()
		s.pulse.heard = time.Now()
		s.mu.Unlock()
	}
}

// asViolation keeps violations and explains other errors of a stream.
func asViolation(err error) error {
	var v *violation
	if errors.As(err, &v) {
		return v
	}
	return streamError(err)
}

func (s *connection) handle(m any) error {
	switch m := m.(type) {
	case acknowledgment:
		for c, accepted := range m {
			if err := s.link.out[c].acknowledge(accepted); err != nil {
				return err
			}
		}
	case ping:
		if !m.pong {
			select {
			case s.pings <- ping{true, m.sent, now()}:
			default: // a flood
			}
			return nil
		}
		s.measure(m)
	case *Refusal:
		return remoteError{m}
	default:
		return violationf("an unexpected control message: %T", m)
	}
	return nil
}

// newPing returns a ping to send.
func (s *connection) newPing() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := ping{sent: now()}
	s.pulse.pings = append(s.pulse.pings, pinged{p.sent, time.Now()})
	s.pulse.pings = s.pulse.pings[max(0, len(s.pulse.pings)-maxPings):]
	return p.encode()
}

// measure takes the round trip from the first answer to a ping.
func (s *connection) measure(pong ping) {
	s.mu.Lock()
	i := slices.IndexFunc(s.pulse.pings, func(p pinged) bool { return p.sent == pong.sent })
	if i < 0 {
		s.mu.Unlock()
		return
	}
	took := time.Since(s.pulse.pings[i].at)
	s.pulse.pings = s.pulse.pings[i+1:] // answers come in order
	s.mu.Unlock()
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	s.link.state.trips.add(sampleOf(pong, took))
}

// writeControl sends acknowledgments, pings and pongs until the connection ends.
func (s *connection) writeControl(stream stream) {
	ticker := time.NewTicker(s.link.node.options.timing.ping)
	defer ticker.Stop()
	message := s.newPing()
	pace := rate.NewLimiter(controlPerSecond/2, controlPerSecond/4)
	for {
		_ = pace.Wait(context.Background())
		if err := sendControl(stream, message); err != nil {
			return // the reader of the stream has the reason
		}
		select {
		case <-s.done:
			return
		case <-s.ack:
			message = encodeAck(s.link.received())
		case p := <-s.pings:
			message = p.encode()
		case <-ticker.C:
			message = s.newPing()
		}
	}
}

// readData accepts the fragments of a class.
func (s *connection) readData(class Class, stream stream) {
	in := s.link.in[class]
	for in.waitForRoom(s.done) {
		var a arrived
		err := stream.RecvMsg(&a)
		if err == nil {
			r := a.data.Reader()
			err = in.accept(s.number, r)
			_ = r.Close()
			a.data.Free()
			signal(s.ack)
		} else {
			err = streamError(err)
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

const (
	hotShare = 8                      // hot fragments for a bulk one
	bulkWait = 100 * time.Millisecond // the longest that a bulk fragment waits for hot ones
)

// writeData sends the fragments of a class until the connection ends.
func (s *connection) writeData(class Class, stream stream) {
	out := s.link.out[class]
	for sent := 0; !s.ended(); {
		if class == Bulk {
			s.yield()
		}
		fragment, ok := out.take(s.number)
		if ok {
			s.link.node.uplink.wait(class, fragment.Len(), s.done)
			if err := stream.SendMsg(fragment); err != nil {
				break // the reader of the stream has the reason
			}
			sent++
		}
		if class == Hot && (!ok || sent%hotShare == 0) {
			signal(s.bulkToken)
		}
		if !ok {
			select {
			case <-out.wake:
			case <-s.done:
			}
		}
	}
	signal(out.wake) // the next connection may need the token that this one took
}

// yield lets hot fragments go before a bulk one.
func (s *connection) yield() {
	if !s.link.out[Hot].pending() {
		return
	}
	timer := time.NewTimer(bulkWait)
	defer timer.Stop()
	select {
	case <-s.bulkToken:
	case <-timer.C:
	case <-s.done:
	}
}

// serveData runs the stream of a class until the connection ends. The stream must be canceled after it returns.
func (s *connection) serveData(class Class, stream stream) {
	s.link.node.work.Go(func() { s.readData(class, stream) })
	s.link.node.work.Go(func() { s.writeData(class, stream) })
	<-s.done
}

// report notes why the connection has ended, and ends the link if it must.
func (s *connection) report() {
	err := s.cause()
	id := s.link.peer.ID
	var remote remoteError
	var refused *Refusal
	var broken *violation
	switch {
	case s.link.session == nil && s.link.node.currentEpoch() != s.link.epoch: // it has ended, here or there: no fault
	case s.link.session != nil && s.link.isOver() && !errors.As(err, &remote): // who has ended the session says so
	case errors.As(err, &remote) && errors.As(err, &refused):
		if refused.Code != codeOver && refused.Code != Left && refused.Code != Forgotten && refused.Code != Expelled {
			s.link.node.notes.add("member %s has closed the connection: %v", id, err)
		}
	case errors.As(err, &remote):
		s.link.node.notes.add("the connection with member %s broke: %v", id, err)
	case errors.As(err, &broken):
		s.link.node.notes.add("member %s breaks the protocol and is refused: %v", id, err)
	default:
		s.link.node.notes.add("the connection with member %s is closed: %v", id, err)
	}
	if errors.As(err, &remote) && refused != nil && refused.Code == codeAbort {
		err = fmt.Errorf("member %s says: %w", id, err)
	}
	s.link.failOn(err)
}
