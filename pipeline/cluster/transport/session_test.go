package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// talker is a member with its sessions.
type talker struct {
	*member
	began    []*Session
	greeted  []string
	urgent   []Message
	over     []error
	failed   []error
	welcomed int
	refuse   error // what Begin returns
}

// startTalker starts a node; one with accepts is a coordinator's.
func startTalker(t testing.TB, ca *authority, id string, accepts bool, adjust ...func(*Options)) *talker {
	t.Helper()
	k := &talker{}
	event := func(f func()) { k.member.event(f) }
	s := Sessions{Receive: func(_ *Session, m Message) { event(func() { k.urgent = append(k.urgent, m) }) },
		Ended:    func(_ *Session, err error) { event(func() { k.over = append(k.over, err) }) },
		Welcomed: func(*Session) { event(func() { k.welcomed++ }) },
		Failed:   func(_ *Session, err error) { event(func() { k.failed = append(k.failed, err) }) }}
	address := ""
	if accepts {
		address = "127.0.0.1:0"
		s.Begin = func(s *Session, greeting []byte) error {
			event(func() { k.began, k.greeted = append(k.began, s), append(k.greeted, string(greeting)) })
			return k.refuse
		}
	}
	k.member = start(t, ca, id, address, append(adjust, func(o *Options) { o.Sessions = s })...)
	return k
}

// talk connects a member to a coordinator through a proxy.
func talk(t testing.TB, adjust ...func(*Options)) (host, m *talker, s *Session, link *slowlink.Proxy) {
	t.Helper()
	ca := newAuthority(t, "run")
	host, m = startTalker(t, ca, "host", true, adjust...), startTalker(t, ca, "m", false, adjust...)
	link, err := slowlink.New(host.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = link.Close() })
	s, err = m.Open(Peer{ID: "host", Addresses: []string{link.Address()}}, []byte("hello"))
	require.NoError(t, err)
	m.await("welcome", func() bool { return m.welcomed == 1 })
	return host, m, s, link
}

// session is the newest that a coordinator has taken.
func (k *talker) session() *Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.began[len(k.began)-1]
}

func (k *talker) epoch(number uint64, peers ...string) {
	k.t.Helper()
	var all []Peer
	for _, id := range peers {
		all = append(all, Peer{ID: id})
	}
	require.NoError(k.t, k.Connect(number, all))
}

// awaitUrgent waits for messages 0 to n of class Urgent, in order.
func (k *talker) awaitUrgent(n int) {
	k.t.Helper()
	k.await(fmt.Sprint(n, " urgent messages"), func() bool { return len(k.urgent) >= n })
	k.mu.Lock()
	defer k.mu.Unlock()
	require.Len(k.t, k.urgent, n)
	for i, m := range k.urgent {
		require.Equal(k.t, fmt.Sprint(i), string(m.Header))
		require.Zero(k.t, m.Epoch)
	}
}

// A session lasts over epochs, connections and faults, and loses and repeats nothing. Its tensors belong to their
// epoch.
func TestASessionLasts(t *testing.T) {
	t.Parallel()
	host, m, s, link := talk(t, shortSilence)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	const epochs, each = 6, 40
	for e := range epochs {
		host.epoch(uint64(e+1), "m")
		m.epoch(uint64(e+1), "host")
		for n := range each {
			require.NoError(t, s.Send(Message{Header: fmt.Append(nil, e*each+n), Payload: [][]byte{make([]byte, random.IntN(100_000))}}))
			require.NoError(t, host.session().Send(Message{Header: fmt.Append(nil, e*each+n), Payload: [][]byte{nil}}))
			require.NoError(t, m.Send("host", message(Hot, n, 1000)))
			require.NoError(t, host.Send("m", message(Bulk, n, 1000)))
			switch {
			case n == 10:
				link.ResetAfter(random.Int64N(200_000))
			case n == 20 && e%2 == 0:
				link.HalfOpen()
			}
		}
		require.NoError(t, m.Flush(context.Background(), "host"))
		require.NoError(t, host.Flush(context.Background(), "m"))
	}
	host.awaitUrgent(epochs * each)
	m.awaitUrgent(epochs * each)
	for from, k := range map[string]*talker{"m": host, "host": m} {
		all := k.awaitMessages(epochs * each)
		require.Len(t, all, epochs*each)
		for e := range epochs {
			requireSeries(t, all[e*each:(e+1)*each], from, all[0].Class, repeat(1000, each)...)
			assert.Equal(t, uint64(e+1), all[e*each].Epoch)
		}
	}
	assert.Equal(t, []string{"hello"}, host.greeted, "one session")
	assert.Empty(t, append(host.over, m.over...))
	assert.Equal(t, 1, m.welcomed)
}

// The messages of an epoch that has ended leave the way free for those of the next, and requests are not lost.
func TestANewEpochOfASessionDropsTensors(t *testing.T) {
	t.Parallel()
	host, m, _, link := talk(t)
	m.epoch(1, "host")
	host.epoch(1, "m")
	link.SetBandwidth(40e6)
	const large = 64 << 20
	require.NoError(t, host.Send("m", message(Bulk, 0, large)))
	require.NoError(t, host.Send("m", message(Bulk, 1, large)))
	require.NoError(t, host.session().Send(Message{Header: []byte("0")}))
	poll(t, "a part of the first message", func() bool { return link.Forwarded() > 1<<20 })
	m.epoch(2, "host")
	host.epoch(2, "m")
	assert.Zero(t, host.Links()[Bulk].Unacknowledged)
	require.NoError(t, host.session().Send(Message{Header: []byte("1")}))
	require.NoError(t, host.Send("m", message(Bulk, 0, 999)))
	got := m.awaitMessages(1)
	requireSeries(t, got, "host", Bulk, 999)
	assert.Equal(t, uint64(2), got[0].Epoch)
	m.awaitUrgent(2)
	assert.Less(t, link.Forwarded(), int64(large/2))
	require.NoError(t, host.Flush(context.Background(), "m"))
	assert.Equal(t, int64(1), host.Links()[Bulk].MessagesSent)
}

// A coordinator that is another process, or that has ended the session, does not know it. The next one is new.
func TestForgottenSessions(t *testing.T) {
	t.Parallel()
	host, m, s, link := talk(t)
	forgotten := func(n int) {
		t.Helper()
		m.await("the end of a session", func() bool { return len(m.over) == n })
		var r *Refusal
		require.ErrorAs(t, m.over[n-1], &r)
		assert.Equal(t, Forgotten, r.Code)
		require.ErrorContains(t, s.Send(Message{}), `member "host"`)
		var err error
		s, err = m.Open(Peer{ID: "host", Addresses: []string{link.Address()}}, []byte("again"))
		require.NoError(t, err)
		m.await("welcome", func() bool { return m.welcomed == n+1 })
	}
	link.Refuse()
	host.session().End(Forgotten, "too slow")
	link.Resume()
	forgotten(1)
	host.session().End(Forgotten, "too slow")
	forgotten(2)
	assert.Equal(t, []string{"hello", "again", "again"}, host.greeted)
	assert.Empty(t, host.over, "it has ended them itself")
	require.NoError(t, m.Close())
	host.await("the end of the session", func() bool { return len(host.over) == 1 })
	require.EqualError(t, errors.Unwrap(host.over[0]), "the member has left")
}

// A member that dials again within its session is the same; another process of it begins another session.
func TestASecondProcessBeginsAnotherSession(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	host := startTalker(t, ca, "host", true)
	first, second := startTalker(t, ca, "m", false), startTalker(t, ca, "m", false)
	for n, k := range []*talker{first, second} {
		_, err := k.Open(host.peer(), []byte{byte('0' + n)})
		require.NoError(t, err)
		k.await("welcome", func() bool { return k.welcomed == 1 })
	}
	first.await("the end of the session", func() bool { return len(first.over) > 0 })
	require.ErrorContains(t, first.over[0], "another session has begun")
	assert.Equal(t, []string{"0", "1"}, host.greeted)
	require.NoError(t, host.session().Send(Message{Header: []byte("0")}))
	second.awaitUrgent(1)
}

func TestSessionsAreRefused(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	host, m := startTalker(t, ca, "host", true), startTalker(t, ca, "m", false)
	host.refuse = errors.New("another build")
	_, err := m.Open(host.peer(), nil)
	require.NoError(t, err)
	m.await("a refusal", func() bool { return len(m.over) == 1 })
	var r *Refusal
	require.ErrorAs(t, m.over[0], &r)
	assert.Equal(t, Refusal{Refused, "another build"}, *r)
	_, err = m.Open(host.peer(), make([]byte, maxGreeting+1))
	require.ErrorContains(t, err, "a greeting of 131073 bytes, expected at most 131072")
	other := startTalker(t, ca, "other", false)
	_, err = other.Open(m.peer(), nil)
	require.NoError(t, err)
	require.Error(t, host.Send("m", message(Hot, 0, 1)), "it has no session")
}

// One who connects again and again is slowed down.
func TestSessionsThatConnectTooOften(t *testing.T) {
	t.Parallel()
	host, _, s, link := talk(t)
	poll(t, "a note", func() bool {
		if s.Connected() {
			link.Reset()
		}
		return strings.Contains(strings.Join(host.allNotes(), "\n"), "member m connects too often")
	})
	require.NoError(t, s.Send(Message{Header: []byte("0")}))
	host.awaitUrgent(1)
}

// A flood of control messages ends a connection, and the session with it.
func TestFloodsEndTheSession(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	host := startTalker(t, ca, "host", true)
	r := intrude(t, ca, "m", host.member)
	r.link.epoch = 0
	r.sayHello()
	for range 3 * controlPerSecond {
		if sendControl(r.control, encodeAck([classes]uint64{})) != nil {
			break
		}
	}
	host.await("the end of the session", func() bool { return len(host.over) == 1 })
	require.ErrorContains(t, host.over[0], "more than 20000 control messages a second")
	assert.True(t, IsViolation(host.over[0]))
}

func TestClockOfASession(t *testing.T) {
	t.Parallel()
	_, m, s, _ := talk(t)
	c, err := s.Clock(t.Context())
	require.NoError(t, err)
	assert.LessOrEqual(t, c.Offset.Abs(), c.Error, "one clock")
	assert.Positive(t, c.Error)
	require.NoError(t, m.Close())
	hour, ms := int64(time.Hour), int64(time.Millisecond)
	var r roundTrips
	_, ok := r.clock()
	assert.False(t, ok)
	r.add(sampleOf(ping{true, 100 * ms, 106*ms + hour}, 10*time.Millisecond)) // a clock an hour ahead, 6 ms to the peer, 4 ms back
	r.add(sampleOf(ping{true, 200 * ms, 250 * ms}, 100*time.Millisecond))
	c, ok = r.clock()
	assert.True(t, ok)
	assert.Equal(t, Clock{Offset: time.Hour + time.Millisecond, Error: 5 * time.Millisecond,
		Measured: time.Unix(0, 110*ms)}, c)
}

// A session that the peer ends leaves nothing behind.
func TestEndedSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	host, m, s, _ := talk(t)
	sessions := func(k *talker) int {
		k.Node.mu.Lock()
		defer k.Node.mu.Unlock()
		return len(k.sessions)
	}
	require.Equal(t, 1, sessions(host))
	s.Leave()
	host.await("the end of the session", func() bool { return len(host.over) == 1 })
	assert.Zero(t, sessions(host))
	_, err := m.Open(host.peer(), nil)
	require.NoError(t, err)
	m.await("welcome", func() bool { return m.welcomed == 2 })
	host.session().End(Forgotten, "too slow")
	m.await("the end of the session", func() bool { return len(m.over) == 1 })
	assert.Zero(t, sessions(m)+sessions(host))
}

// A member outside an epoch makes the coordinator allocate nothing for tensors, whatever epoch they name.
func TestTensorsOfMembersOutsideTheEpochAreDropped(t *testing.T) { // see TestFragmentsThatLieEndTheLink
	ca := newAuthority(t, "run")
	host := startTalker(t, ca, "host", true)
	r := intrude(t, ca, "m", host.member)
	r.link.epoch = 0
	r.sayHello()
	sequence := uint64(0)
	send := func(epoch uint64, b []byte) {
		binary.LittleEndian.PutUint64(b[1:], sequence)
		if b[0] == firstFragment {
			binary.LittleEndian.PutUint64(b[fragmentPrefix:], epoch)
		}
		r.sendFragment(b)
		sequence++
		poll(t, "a fragment", func() bool { return host.session().link.in[Hot].accepted() == sequence })
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for epoch := range uint64(3) { // before the first epoch, in one of others, and before one that does not begin
		send(epoch, fragment(0, 0, 10, 200<<20))
		send(epoch, encodeLast(0).Materialize())
		send(epoch, encode(message(Hot, 0, 10), 0)[0])
		if epoch == 0 {
			host.epoch(1)
		}
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
	host.epoch(2, "m")
	send(1, encode(message(Hot, 1, 10), 0)[0])
	send(3, encode(message(Hot, 2, 10), 0)[0])
	send(2, encode(message(Hot, 0, 10), 0)[0])
	got := host.awaitMessages(1)
	requireSeries(t, got, "m", Hot, 10)
	assert.Equal(t, int64(1), host.Links()[Hot].MessagesReceived)
}

// A round trip may take longer than the time between two pings.
func TestLateAnswersToPingsMeasure(t *testing.T) {
	t.Parallel()
	_, m, _, _ := talk(t)
	s := newConnection(newLink(m.Node, Peer{ID: "x"}, 1, true), nil)
	var sent []ping
	for range maxPings + 1 {
		p, err := decodeControl(s.newPing())
		require.NoError(t, err)
		sent = append(sent, p.(ping))
	}
	for _, x := range []struct{ ping, samples int }{{0, 0}, {1, 1}, {1, 1}, {3, 2}, {2, 2}, {maxPings, 3}} {
		s.measure(ping{pong: true, sent: sent[x.ping].sent, answered: now()})
		assert.Len(t, s.link.state.trips.samples, x.samples, x.ping)
	}
}
