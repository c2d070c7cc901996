//go:build !js

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

const (
	defaultRetain = time.Minute
	blockTime     = time.Minute     // for which a member stays out that does what no honest one does
	endTimeout    = 5 * time.Second // for members to learn how the run has ended
	maxEnding     = 4 << 10         // bytes of the text of an ending that members get

	// messagesPerSecond is how many messages the coordinator takes from one member, beyond a burst of as many.
	messagesPerSecond = 20_000
)

// ServerOptions configures [NewServer].
type ServerOptions struct {
	Build  string
	Lease  time.Duration // of which a fifth passes between two pings: transport.Options.Silence; 0: 5 s
	Retain time.Duration // how long the session of a lost member is kept; 0: one minute
	Note   func(format string, args ...any)

	maxMessages int // a second, of one member; 0: messagesPerSecond
}

// Server is the coordinator's end of the sessions with its members. A node with [Server.Sessions] carries them.
type Server struct {
	o      ServerOptions
	lastID atomic.Uint64 // of requests
	loops  sync.WaitGroup
	done   chan struct{}

	mu       sync.Mutex
	sessions map[string]*memberSession // by member
	watchers map[*watcher]bool
	blocked  map[string]time.Time // by member: until then its sessions are refused
	closed   bool
}

// NewServer begins to watch the members of a run.
func NewServer(o ServerOptions) *Server {
	o.Lease, o.Retain = cmp.Or(o.Lease, transport.DefaultSilence), cmp.Or(o.Retain, defaultRetain)
	o.maxMessages = cmp.Or(o.maxMessages, messagesPerSecond)
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	s := &Server{o: o, done: make(chan struct{}), sessions: map[string]*memberSession{}, watchers: map[*watcher]bool{},
		blocked: map[string]time.Time{}}
	s.loops.Go(s.watchLeases)
	return s
}

// Sessions are for the options of the coordinator's node.
func (s *Server) Sessions() transport.Sessions {
	return transport.Sessions{Begin: s.begin, Receive: s.receive, Ended: s.ended}
}

// begin begins a session.
func (s *Server) begin(session *transport.Session, greeting []byte) error {
	member := session.Peer()
	var h hello
	if err := json.Unmarshal(greeting, &h); err != nil || len(h.Info) > maxInfo {
		s.o.Note("control: %s: refused: malformed hello", member)
		return errors.New("malformed hello")
	}
	if err := identity.CheckBuild(identity.Protocol, s.o.Build, h.Protocol, h.Build); err != nil {
		s.o.Note("control: %s: refused: %v", member, err)
		r := rejection{Text: err.Error()}
		errors.As(err, &r.Mismatch)
		return &transport.Refusal{Code: transport.Refused, Text: string(encodeJSON(r))}
	}
	s.mu.Lock()
	before, blocked, closed := s.sessions[member], time.Now().Before(s.blocked[member]), s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return &transport.Refusal{Code: transport.Left, Text: "the run has ended"}
	case blocked:
		s.o.Note("control: %s: refused: it is blocked", member)
		return &transport.Refusal{Code: transport.Left, Text: "the member is blocked for a while"}
	case before != nil:
		s.drop(before, Dropped, "the member began another session")
	}
	s.add(session, h.Info)
	return nil
}

// ended is told of a session that the member has ended, or that it has spoiled.
func (s *Server) ended(session *transport.Session, why error) {
	m := s.of(session)
	if m == nil {
		return
	}
	var r *transport.Refusal
	switch {
	case errors.As(why, &r) && r.Code == transport.Left:
		s.drop(m, Left, "the member has left")
	case transport.IsViolation(why):
		s.block(m, why.Error())
	default:
		s.drop(m, Dropped, why.Error())
	}
}

// block ends a session and refuses others of the member for a while.
func (s *Server) block(m *memberSession, reason string) {
	s.o.Note("control: %s: refused: %s", m.id, reason)
	s.mu.Lock()
	s.blocked[m.id] = time.Now().Add(blockTime)
	s.mu.Unlock()
	s.drop(m, Dropped, reason)
	m.session.End(transport.Left, reason)
}

// receive takes a message of a member.
func (s *Server) receive(session *transport.Session, t transport.Message) {
	m := s.of(session)
	if m == nil {
		return // the session has ended
	}
	msg, err := decode(t)
	switch {
	case !m.rate.Allow():
		s.block(m, fmt.Sprintf("more than %d messages a second", s.o.maxMessages))
	case err != nil:
		s.block(m, err.Error())
	case msg.kind != messageReply && msg.kind != messageFailure:
		s.block(m, fmt.Sprintf("found a message of kind %d, expected a reply", msg.kind))
	default:
		m.deliver(msg)
	}
}

// Drop gives a member up: its session ends, its requests fail. If the member comes back it joins again, and learns that
// by [ClientOptions.Restarted].
func (s *Server) Drop(member, reason string) error { return s.end(member, transport.Forgotten, reason) }

// Expel ends the session of a member, which learns the reason, and closes its connection. The member does not come back
// if its certificate is refused from now on: see [identity.Authority.Expel].
func (s *Server) Expel(member, reason string) error { return s.end(member, transport.Expelled, reason) }

// end ends the session of a member.
func (s *Server) end(member string, code transport.Code, reason string) error {
	m, err := s.member(member)
	if err != nil {
		return err
	}
	s.drop(m, Dropped, reason)
	m.session.End(code, reason)
	return nil
}

// End ends the run for all members: their [ClientOptions.Lost] gets an [*EndedError]. It waits for running functions
// that this package calls, and is not called from them. The node is closed afterwards.
func (s *Server) End(e Ending) error {
	e.Text = strings.ToValidUTF8(e.Text[:min(len(e.Text), maxEnding)], "")
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	var settling sync.WaitGroup
	for _, m := range s.all() {
		_ = message{kind: messageEnd, data: encodeJSON(e)}.send(m.session) // it may be gone
		settling.Go(func() { m.session.Settle(ctx) })
	}
	settling.Wait()
	return s.Abandon()
}

// Abandon ends without a word, as if the process were killed. Members wait for a coordinator at the same address until
// their timeout is over.
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
		m.end("the coordinator has ended")
	}
	s.loops.Wait()
	return nil
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

// of returns the state of a session; nil: it has ended.
func (s *Server) of(session *transport.Session) *memberSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.sessions[session.Peer()]; m != nil && m.session == session {
		return m
	}
	return nil
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

// Clock measures the difference between the clocks of a member and of this process.
func (s *Server) Clock(ctx context.Context, member string) (transport.Clock, error) {
	m, err := s.member(member)
	if err != nil {
		return transport.Clock{}, err
	}
	return m.session.Clock(ctx)
}
