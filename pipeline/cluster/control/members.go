//go:build !js

package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"golang.org/x/time/rate"
)

// Member is what the coordinator knows about a member.
type Member struct {
	ID   string
	Info []byte // what the member says of itself
	Lost bool   // the lease is over
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
	session *transport.Session
	id      string
	server  *Server
	rate    *rate.Limiter

	mu       sync.Mutex
	info     []byte
	seen     time.Time // when the lease was last renewed
	heard    time.Time // when the session last brought a byte, as far as seen knows
	lost     bool
	requests map[uint64]chan answer
	reason   string // why the session has ended
}

type answer struct {
	data []byte
	err  error
}

func (m *memberSession) member() Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Member{ID: m.id, Info: m.info, Lost: m.lost}
}

// add keeps a session and reports its member.
func (s *Server) add(session *transport.Session, info []byte) {
	now := time.Now()
	m := &memberSession{session: session, id: session.Peer(), server: s, info: info, seen: now, heard: now,
		rate: rate.NewLimiter(rate.Limit(s.o.maxMessages), s.o.maxMessages), requests: map[uint64]chan answer{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[m.id] = m
	s.notify(MemberChange{Change: Joined, Member: m.member()})
}

// drop forgets a session and reports why.
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

// end fails the requests of a session.
func (m *memberSession) end(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reason = reason
	for id, c := range m.requests {
		c <- answer{err: &LostError{Member: m.id, Reason: reason}}
		delete(m.requests, id)
	}
}

// deliver passes on the answer to a request.
func (m *memberSession) deliver(msg message) {
	m.mu.Lock()
	c := m.requests[msg.id]
	delete(m.requests, msg.id)
	m.mu.Unlock()
	switch {
	case c == nil: // it was canceled
	case msg.kind == messageReply:
		c <- answer{data: msg.data}
	default:
		c <- answer{err: decodeFailure(m.id, msg.data)}
	}
}

// ask queues a request. The channel gets its answer.
func (m *memberSession) ask(name string, request []byte) (id uint64, c chan answer, err error) {
	c = make(chan answer, 1)
	m.mu.Lock()
	if m.reason != "" {
		m.mu.Unlock()
		return 0, nil, &LostError{Member: m.id, Reason: m.reason}
	}
	id = m.server.lastID.Add(1)
	m.requests[id] = c
	m.mu.Unlock()
	if err := (message{kind: messageRequest, id: id, name: name, data: request}).send(m.session); err != nil {
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
			_ = message{kind: messageCancel, id: id}.send(m.session) // it may be gone
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
