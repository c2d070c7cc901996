//go:build !js

package control

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"golang.org/x/time/rate"
)

// Member is what the coordinator knows about a member.
type Member struct {
	ID     string
	Info   []byte    // as the member gave it to [Connect]
	Joined time.Time // when the session began
	Seen   time.Time // when the lease was last renewed
	Lost   bool      // the lease is over
}

// Change is what happened to a member.
type Change string

const (
	Joined   Change = "joined"   // a session has begun
	Lost     Change = "lost"     // the lease is over
	Returned Change = "returned" // a lost member has renewed its lease: its session goes on
	Left     Change = "left"     // the member has said goodbye; its session is over
	Dropped  Change = "dropped"  // the session is over for another reason
)

// MemberChange is an entry of the history of members.
type MemberChange struct {
	Change Change
	Member Member
	Reason string // for Dropped
}

// memberSession is a session with a member, on the coordinator.
type memberSession struct {
	*stream
	id     string
	server *Server
	rate   *rate.Limiter

	mu       sync.Mutex
	info     []byte
	joined   time.Time
	seen     time.Time
	lost     bool
	lastID   uint64
	requests map[uint64]chan answer
	pongs    chan pong
	reason   string // why the session has ended
}

type answer struct {
	data []byte
	err  error
}

type pong struct{ sent, received, replied, answered int64 }

func (m *memberSession) member() Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Member{ID: m.id, Info: m.info, Joined: m.joined, Seen: m.seen, Lost: m.lost}
}

// receive handles a frame of a member. NATS calls it from one goroutine for all members, and has checked that the
// member owns the subject.
func (s *Server) receive(member string, b []byte) {
	f, err := decodeFrame(b)
	if err != nil {
		s.o.Note("control: %s: refused: %v", member, err)
		return
	}
	s.mu.Lock()
	m := s.sessions[member]
	s.mu.Unlock()
	if f.kind == frameHello {
		s.hello(member, m, f)
		return
	}
	if m == nil || f.session != m.session || f.instance != s.instance {
		if f.kind == frameRenew {
			s.publish(member, frame{kind: frameForgotten, session: f.session, instance: s.instance})
		}
		return
	}
	if !m.rate.Allow() {
		reason := fmt.Sprintf("more than %d frames a second", s.o.maxFrames)
		s.o.Note("control: %s: refused: %s", member, reason)
		s.gate.block(member, time.Minute)
		s.drop(m, Dropped, reason)
		return
	}
	m.renewed()
	m.handle(f)
}

func (m *memberSession) handle(f frame) {
	switch f.kind {
	case frameRenew:
		m.acknowledgeRenewal(f.acknowledged)
		m.publish(m.frame(frameRenewed, nil))
	case frameAck, frameResend:
		m.acknowledge(f.acknowledged, f.kind == frameResend)
	case framePong:
		m.pong(f.body)
	case frameGoodbye:
		m.server.drop(m, Left, "the member has left")
	case framePiece:
		m.acknowledge(f.acknowledged, false)
		msg, complete, err := m.take(f)
		if err != nil {
			m.server.o.Note("control: %s: refused: %v", m.id, err)
			m.server.drop(m, Dropped, err.Error())
		} else if complete {
			m.deliver(msg)
		}
	}
}

// hello begins or resumes a session.
func (s *Server) hello(member string, m *memberSession, f frame) {
	var h hello
	if err := json.Unmarshal(f.body, &h); err != nil || f.session == 0 || len(h.Info) > maxInfo {
		s.o.Note("control: %s: refused: malformed hello", member)
		return
	}
	if err := identity.CheckBuild(identity.Protocol, s.o.Build, h.Protocol, h.Build); err != nil {
		s.o.Note("control: %s: refused: %v", member, err)
		b := bye{Text: err.Error()}
		errors.As(err, &b.Mismatch)
		s.publish(member, frame{kind: frameBye, session: f.session, instance: s.instance, body: encodeJSON(b)})
		return
	}
	known := m != nil && m.session == f.session
	switch {
	case h.Resume && (!known || f.instance != s.instance):
		s.publish(member, frame{kind: frameForgotten, session: f.session, instance: s.instance})
		return
	case !known:
		if m != nil {
			s.drop(m, Dropped, "the member began another session")
		}
		if m = s.newSession(member, f.session, h.Info); m == nil {
			return
		}
	}
	m.renewed()
	m.publish(m.frame(frameWelcome, encodeJSON(welcome{LeaseMillis: s.o.Lease.Milliseconds()})))
	m.resume(f.acknowledged)
}

func (s *Server) newSession(member string, session uint64, info []byte) *memberSession {
	now := time.Now()
	m := &memberSession{id: member, server: s, info: info, joined: now, seen: now,
		rate: rate.NewLimiter(rate.Limit(s.o.maxFrames), s.o.maxFrames), requests: map[uint64]chan answer{}, pongs: make(chan pong, clockPings)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	m.stream = newStream(session, s.instance, func(f frame) { s.publish(member, f) })
	s.sessions[member] = m
	s.notify(MemberChange{Change: Joined, Member: m.member()})
	return m
}

// drop ends a session and reports why.
func (s *Server) drop(m *memberSession, change Change, reason string) {
	s.mu.Lock()
	if s.sessions[m.id] != m {
		s.mu.Unlock()
		return
	}
	delete(s.sessions, m.id)
	s.notify(MemberChange{Change: change, Member: m.member(), Reason: reason})
	s.mu.Unlock()
	m.end(reason)
}

// Drop gives a member up: its session ends, its requests fail. If the member comes back it joins again, and learns that
// by [ClientOptions.Restarted].
func (s *Server) Drop(member, reason string) error {
	m, err := s.member(member)
	if err != nil {
		return err
	}
	s.drop(m, Dropped, reason)
	return nil
}

// Expel ends the session of a member, which learns the reason, and closes its connections. The member does not come back
// if its certificate is refused from now on: see [identity.Authority.Expel].
func (s *Server) Expel(member, reason string) error {
	m, err := s.member(member)
	if err != nil {
		return err
	}
	m.publish(m.frame(frameBye, encodeJSON(bye{Text: reason, Expelled: true})))
	_ = s.nats.FlushTimeout(goodbyeTimeout) // without it the member only finds that it is refused
	s.drop(m, Dropped, reason)
	s.gate.disconnect(member)
	return nil
}

// end stops the streams of a session and fails its requests.
func (m *memberSession) end(reason string) {
	m.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reason = reason
	for id, c := range m.requests {
		c <- answer{err: &LostError{Member: m.id, Reason: reason}}
		delete(m.requests, id)
	}
}

// renewed renews the lease.
func (m *memberSession) renewed() {
	m.mu.Lock()
	m.seen = time.Now()
	lost := m.lost
	m.mu.Unlock()
	if lost {
		m.server.setLost(m, false)
	}
}

// setLost reports a member that is lost or has returned.
func (s *Server) setLost(m *memberSession, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.mu.Lock()
	changed := m.lost != lost
	m.lost = lost
	m.mu.Unlock()
	if !changed || s.sessions[m.id] != m {
		return
	}
	if lost {
		s.notify(MemberChange{Change: Lost, Member: m.member()})
	} else {
		s.notify(MemberChange{Change: Returned, Member: m.member()})
	}
}

// watchLeases finds the members whose lease is over.
func (s *Server) watchLeases() {
	tick := max(s.o.Lease/20, time.Millisecond)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ticker.C:
		case <-s.done:
			return
		}
		stall := time.Since(last) - tick
		last = time.Now()
		s.checkLeases(stall)
	}
}

// checkLeases finds the members whose lease is over. If this process itself has stood still, all leases are extended by
// that time: their renewals could not be read.
func (s *Server) checkLeases(stall time.Duration) {
	for _, m := range s.all() {
		if stall > s.o.Lease/renewalsOfLease {
			m.extend(stall)
		}
		switch silent := time.Since(m.member().Seen); {
		case silent > s.o.Lease+s.o.Retain:
			s.drop(m, Dropped, fmt.Sprintf("no sign of life for %v", silent.Round(time.Second)))
		case silent > s.o.Lease:
			s.setLost(m, true)
		}
	}
}

func (m *memberSession) extend(stall time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = m.seen.Add(stall)
}

// deliver passes on a message of the member.
func (m *memberSession) deliver(msg message) {
	switch msg.kind {
	case messageReply, messageFailure:
		m.mu.Lock()
		c := m.requests[msg.id]
		delete(m.requests, msg.id)
		m.mu.Unlock()
		if c != nil && msg.kind == messageReply {
			c <- answer{data: msg.data}
		} else if c != nil {
			c <- answer{err: decodeFailure(m.id, msg.data)}
		}
	default:
		m.server.o.Note("control: %s: found a message of kind %d, expected a reply", m.id, msg.kind)
	}
	m.handled(msg)
}

// ask queues a request. The channel gets its answer.
func (m *memberSession) ask(name string, request []byte) (id uint64, c chan answer, err error) {
	c = make(chan answer, 1)
	m.mu.Lock()
	if m.reason != "" {
		m.mu.Unlock()
		return 0, nil, &LostError{Member: m.id, Reason: m.reason}
	}
	m.lastID++
	id = m.lastID
	m.requests[id] = c
	m.mu.Unlock()
	if err := m.send(message{kind: messageRequest, id: id, name: name, data: request}); err != nil {
		m.forget(id)
		return 0, nil, fmt.Errorf("member %s: %w", m.id, err)
	}
	return id, c, nil
}

// request makes a request and waits for its answer.
func (m *memberSession) request(ctx context.Context, name string, request []byte) ([]byte, error) {
	id, c, err := m.ask(name, request)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-c:
		return a.data, a.err
	case <-ctx.Done():
		if m.forget(id) {
			_ = m.send(message{kind: messageCancel, id: id})
		}
		return nil, fmt.Errorf("member %s: no answer: %w", m.id, context.Cause(ctx))
	}
}

// forget removes a request. It reports whether the request was waiting.
func (m *memberSession) forget(id uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.requests[id]
	delete(m.requests, id)
	return ok
}

func (m *memberSession) pong(b []byte) {
	answered := time.Now().UnixNano()
	if sent, received, replied, ok := decodePong(b); ok {
		select {
		case m.pongs <- pong{sent, received, replied, answered}:
		default: // no one waits for it
		}
	}
}

// clock sends pings one after the other and keeps the one with the least round trip.
func (m *memberSession) clock(ctx context.Context) (best Clock, err error) {
	found := false
	for range clockPings {
		sent := time.Now().UnixNano()
		m.publish(m.frame(framePing, binary.BigEndian.AppendUint64(nil, uint64(sent))))
		timeout := time.After(pingTimeout)
		for waiting := true; waiting; {
			select {
			case p := <-m.pongs:
				if p.sent == sent { // not the late answer to an earlier ping
					if c := clockOf(p.sent, p.received, p.replied, p.answered); !found || c.RoundTrip < best.RoundTrip {
						best, found = c, true
					}
					waiting = false
				}
			case <-timeout:
				waiting = false
			case <-m.stopped:
				return Clock{}, &LostError{Member: m.id, Reason: "the session has ended"}
			case <-ctx.Done():
				return Clock{}, context.Cause(ctx)
			}
		}
	}
	if !found {
		return Clock{}, fmt.Errorf("member %s: no answer to %d pings", m.id, clockPings)
	}
	return best, nil
}

// Knows reports whether a member has a session.
func (s *Server) Knows(member string) bool {
	_, err := s.member(member)
	return err == nil
}

// Members lists the members that have a session, lost ones included, by ID.
func (s *Server) Members() []Member {
	var members []Member
	for _, m := range s.all() {
		members = append(members, m.member())
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	return members
}
