package transport

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/stretchr/testify/require"
)

// testTiming is that of runs, but for what no slow machine can miss.
var testTiming = timing{ping: 100 * time.Millisecond, silence: 10 * time.Second, hello: 10 * time.Second, progress: 30 * time.Second,
	minBackoff: 5 * time.Millisecond, maxBackoff: 50 * time.Millisecond, farewell: 500 * time.Millisecond}

// shortSilence closes a silent connection early. On a slow machine a good one is closed as well, without harm.
func shortSilence(o *Options) { o.timing.silence = 500 * time.Millisecond }

// waitLimit guards against waiting forever.
const waitLimit = time.Hour

// member is a node and what it has received.
type member struct {
	*Node
	t  testing.TB
	id string

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced with every event
	received []received
	lost     []error
	noted    []string
	receive  func(from string, m Message) // called before a message is kept
}

type received struct {
	from string
	Message
}

// start starts a node with a member's identity.
func start(t testing.TB, a *authority, id, address string, adjust ...func(*Options)) *member {
	t.Helper()
	return startWith(t, a, id, address, a.issue(id), adjust...)
}

func startWith(t testing.TB, a *authority, id, address string, config *tls.Config, adjust ...func(*Options)) *member {
	t.Helper()
	m := &member{t: t, id: id, changed: make(chan struct{})}
	o := Options{Self: id, TLS: config, Grace: waitLimit, MaxMessage: 256 << 20, timing: testTiming,
		Receive: func(from string, msg Message) {
			if m.receive != nil {
				m.receive(from, msg)
			}
			m.event(func() { m.received = append(m.received, received{from, msg}) })
		},
		Lost: func(_ string, err error) { m.event(func() { m.lost = append(m.lost, err) }) },
		Note: func(format string, args ...any) {
			m.event(func() { m.noted = append(m.noted, fmt.Sprintf(format, args...)) })
		}}
	if a != nil {
		o.Identify = a.identify
	}
	for _, f := range adjust {
		f(&o)
	}
	node, err := Listen(address, o)
	require.NoError(t, err)
	m.Node = node
	t.Cleanup(func() { _ = node.Close() })
	return m
}

func (m *member) event(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// await waits until ok, which is called with mu held, is true.
func (m *member) await(what string, ok func() bool) {
	m.t.Helper()
	timer := time.NewTimer(waitLimit)
	defer timer.Stop()
	for {
		m.mu.Lock()
		done, changed := ok(), m.changed
		m.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			m.mu.Lock()
			defer m.mu.Unlock()
			require.FailNow(m.t, "no "+what+" at member "+m.id, "%d messages, lost %v, notes:\n%s", len(m.received), m.lost,
				strings.Join(m.noted, "\n"))
		}
	}
}

func (m *member) awaitMessages(n int) []received {
	m.t.Helper()
	m.await(fmt.Sprintf("%d messages", n), func() bool { return len(m.received) >= n })
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.received)
}

func (m *member) awaitNote(text string) {
	m.t.Helper()
	m.await(fmt.Sprintf("note %q", text), func() bool { return strings.Contains(strings.Join(m.noted, "\n"), text) })
}

func (m *member) awaitLost() error {
	m.t.Helper()
	m.await("lost peer", func() bool { return len(m.lost) > 0 })
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost[0]
}

func (m *member) allNotes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.noted)
}

func (m *member) allLost() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.lost)
}

// setGrace changes the grace period of the link to the only peer in this epoch.
func (m *member) setGrace(d time.Duration) {
	l := m.sorted()[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.period = d
}

// poll waits for what has no event.
func poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, waitLimit, 2*time.Millisecond, what)
}

func (m *member) connected() bool { return m.Links()[0].Connected }

func (m *member) address() string { return fmt.Sprintf("127.0.0.1:%d", m.Port()) }

func (m *member) peer() Peer { return Peer{ID: m.id, Addresses: []string{m.address()}} }

// couple starts members a and b; b dials a through a proxy.
func couple(t testing.TB, adjust ...func(*Options)) (a, b *member, link *slowlink.Proxy) {
	t.Helper()
	ca := newAuthority(t, "run")
	a = start(t, ca, "a", "127.0.0.1:0", adjust...)
	b = start(t, ca, "b", "127.0.0.1:0", adjust...)
	link, err := slowlink.New(a.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = link.Close() })
	connect(t, 1, a, b, link)
	return a, b, link
}

func connect(t testing.TB, epoch uint64, a, b *member, link *slowlink.Proxy) {
	t.Helper()
	require.NoError(t, a.Connect(epoch, []Peer{b.peer()}))
	require.NoError(t, b.Connect(epoch, []Peer{{ID: "a", Addresses: []string{link.Address()}}}))
}

// message is number n of a class, with a payload of some tensors that n determines.
func message(class Class, n, size int) Message {
	data := make([]byte, size)
	for i := 0; i+8 <= size; i += 1000 {
		binary.LittleEndian.PutUint64(data[i:], uint64(n+1)<<32|uint64(i))
	}
	cut := size / 3
	return Message{Class: class, Header: fmt.Appendf(nil, "%v %d", class, n), Payload: [][]byte{data[:cut], {}, data[cut:]}}
}

// requireSeries checks that the messages of a class are those of message, from number 0, each once and in order.
func requireSeries(t testing.TB, all []received, from string, class Class, sizes ...int) {
	t.Helper()
	n := 0
	for _, r := range all {
		if r.from != from || r.Class != class {
			continue
		}
		require.Less(t, n, len(sizes), "a message too many")
		want := message(class, n, sizes[n])
		require.Equal(t, string(want.Header), string(r.Header))
		require.Len(t, r.Payload, len(want.Payload))
		for i := range want.Payload {
			require.True(t, bytes.Equal(want.Payload[i], r.Payload[i]), "tensor %d of message %d differs", i, n)
		}
		n++
	}
	require.Equal(t, len(sizes), n, "messages of class %v", class)
}

// repeat returns n times size.
func repeat(size, n int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = size
	}
	return sizes
}

// leaked waits until no goroutine of this package or of gRPC is left beside the present one. It returns the stacks of
// those that are left.
func leaked() []string {
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(5 * time.Millisecond) {
		b := make([]byte, 1<<20)
		all := strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n")
		left := slices.DeleteFunc(all[1:], func(stack string) bool {
			return !strings.Contains(stack, "google.golang.org/grpc") && !strings.Contains(stack, "gpupipe")
		})
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}
