package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMessagesArriveInOrderInBothDirections(t *testing.T) {
	t.Parallel()
	a, b, _ := couple(t)
	sizes := []int{0, 1, 3, fragmentPayload - 1, fragmentPayload, fragmentPayload + 1, 2<<20 + 7}
	for n, size := range sizes {
		for class := range classes {
			require.NoError(t, a.Send("b", message(class, n, size)))
			require.NoError(t, b.Send("a", message(class, n, size)))
		}
	}
	for _, m := range []*member{a, b} {
		other := map[string]string{"a": "b", "b": "a"}[m.id]
		all := m.awaitMessages(int(classes) * len(sizes))
		for class := range classes {
			requireSeries(t, all, other, class, sizes...)
		}
		assert.Equal(t, uint64(1), all[0].Epoch)
	}
	require.NoError(t, a.Flush(context.Background(), "b"))
	require.NoError(t, b.Flush(context.Background(), "a"))
	poll(t, "a round trip", func() bool { return a.Links()[0].RoundTrip > 0 && b.Links()[0].RoundTrip > 0 })
	for _, k := range append(a.Links(), b.Links()...) {
		assert.True(t, k.Connected)
		assert.Equal(t, int64(len(sizes)), k.MessagesSent)
		assert.Equal(t, int64(len(sizes)), k.MessagesReceived)
		assert.Zero(t, k.Unacknowledged)
		assert.Positive(t, k.Wait)
		assert.Zero(t, k.Resent)
		assert.Greater(t, k.BytesSent, int64(2<<20))
		assert.Greater(t, k.BytesReceived, int64(2<<20))
	}
	assert.Empty(t, a.allNotes())
	assert.Empty(t, b.allNotes())
}

func TestResetInMidMessageLosesNothing(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t)
	sizes := repeat(1<<20+11, 6)
	for n, size := range sizes {
		for class := range classes {
			require.NoError(t, a.Send("b", message(class, n, size)))
			require.NoError(t, b.Send("a", message(class, n, size)))
		}
	}
	for range 6 {
		before := link.Forwarded()
		link.ResetAfter(1<<20 + 12345)
		poll(t, "a reset", func() bool { return link.Forwarded() > before+1<<20 })
	}
	for _, m := range []*member{a, b} {
		other := map[string]string{"a": "b", "b": "a"}[m.id]
		all := m.awaitMessages(int(classes) * len(sizes))
		for class := range classes {
			requireSeries(t, all, other, class, sizes...)
		}
	}
	assert.Positive(t, a.Links()[0].Reconnects)
	assert.Positive(t, b.Links()[0].Resent+b.Links()[1].Resent)
	assert.Empty(t, a.allLost())
	assert.Empty(t, b.allLost())
}

func TestOutageShorterThanGraceLosesNothing(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t, shortSilence)
	require.NoError(t, a.Send("b", message(Hot, 0, 1<<20)))
	b.awaitMessages(1)
	link.Hang()
	require.NoError(t, a.Send("b", message(Hot, 1, 1<<20)))
	a.awaitNote("no byte from member b for 500ms")
	b.awaitNote("no byte from member a for 500ms")
	assert.False(t, a.connected())
	link.Resume()
	require.NoError(t, a.Send("b", message(Hot, 2, 1<<20)))
	requireSeries(t, b.awaitMessages(3), "a", Hot, repeat(1<<20, 3)...)
	assert.Empty(t, a.allLost())
	assert.Empty(t, b.allLost())
}

func TestHalfOpenConnectionIsFound(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t, shortSilence)
	require.NoError(t, b.Send("a", message(Hot, 0, 100)))
	a.awaitMessages(1)
	link.HalfOpen()
	require.NoError(t, b.Send("a", message(Hot, 1, 100)))
	b.awaitNote("no byte from member a for 500ms")
	requireSeries(t, a.awaitMessages(2), "b", Hot, 100, 100)
}

func TestPeerIsLostOnceAfterGrace(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t)
	require.NoError(t, b.Send("a", message(Hot, 0, 100)))
	a.awaitMessages(1)
	poll(t, "a connection", func() bool { return a.connected() && b.connected() })
	a.setGrace(300 * time.Millisecond)
	b.setGrace(300 * time.Millisecond)
	link.Refuse()
	require.ErrorContains(t, a.awaitLost(), "no connection for 300ms")
	require.ErrorContains(t, b.awaitLost(), "no connection for 300ms")
	err := b.Send("a", message(Hot, 1, 100))
	require.ErrorContains(t, err, "no connection for 300ms")
	require.NotErrorIs(t, err, ErrUnreachable, "there was one")
	link.Resume()
	connect(t, 2, a, b, link)
	require.NoError(t, b.Send("a", message(Hot, 1, 100)))
	assert.Equal(t, uint64(2), a.awaitMessages(2)[1].Epoch)
	assert.Len(t, a.allLost(), 1)
	assert.Len(t, b.allLost(), 1)
}

func TestPeerThatNeverConnectsIsLost(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	a := start(t, ca, "a", "127.0.0.1:0", func(o *Options) { o.Grace = 100 * time.Millisecond })
	require.NoError(t, a.Connect(1, []Peer{{ID: "b"}}))
	_ = a.Send("b", message(Hot, 0, 10)) // on a slow machine the grace period is over
	now, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.Flush(now, "b"), ErrUnreachable)
	require.ErrorContains(t, a.awaitLost(), "no connection for 100ms: it has not dialed")
	require.ErrorIs(t, a.Flush(t.Context(), "b"), ErrUnreachable)

	b := start(t, ca, "b", "127.0.0.1:0")
	require.NoError(t, b.Connect(1, []Peer{{ID: "a", Addresses: []string{a.address()}}}))
	require.ErrorIs(t, b.awaitLost(), ErrUnreachable, "the other side has given up")
}

func TestNewEpochDropsTheMessagesOfTheOneBefore(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t)
	link.Hang()
	for n := range 3 {
		require.NoError(t, a.Send("b", message(Hot, n, 1<<20)))
	}
	connect(t, 2, a, b, link)
	assert.Zero(t, a.Links()[0].Unacknowledged)
	link.Resume()
	require.NoError(t, a.Send("b", message(Hot, 0, 99)))
	requireSeries(t, b.awaitMessages(1), "a", Hot, 99)
	require.ErrorContains(t, a.Connect(2, nil), "epoch 2 has begun before")
}

func TestMemberWithoutAddressDials(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	z, tab := start(t, ca, "z", "127.0.0.1:0"), start(t, ca, "a", "") // "z" would dial, if it could
	all := []Peer{z.peer(), {ID: "a"}}
	require.NoError(t, z.Connect(1, all))
	require.NoError(t, tab.Connect(1, all))
	require.NoError(t, z.Send("a", message(Bulk, 0, 1000)))
	requireSeries(t, tab.awaitMessages(1), "z", Bulk, 1000)
	require.ErrorContains(t, tab.Connect(2, []Peer{{ID: "x"}}), `neither "a" nor "x" has an address`)
}

func TestReceiveThatBlocksStopsItsClassOnly(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	a, b := start(t, ca, "a", "127.0.0.1:0"), start(t, ca, "b", "")
	require.NoError(t, a.Connect(1, []Peer{{ID: "b"}}))
	require.NoError(t, b.Connect(1, []Peer{a.peer()}))
	release := make(chan struct{})
	b.receive = func(_ string, m Message) {
		if m.Class == Bulk {
			<-release
		}
	}
	sizes := repeat(8<<20, 5) // more than inbox and windows hold
	for n, size := range sizes {
		require.NoError(t, a.Send("b", message(Bulk, n, size)))
	}
	poll(t, "full windows", func() bool { return a.Links()[Bulk].MessagesSent >= inboxBytes/(8<<20) })
	require.NoError(t, a.Send("b", message(Hot, 0, 5<<20)))
	requireSeries(t, b.awaitMessages(1), "a", Hot, 5<<20)
	assert.Positive(t, a.Links()[Bulk].Unacknowledged)
	close(release)
	requireSeries(t, b.awaitMessages(6), "a", Bulk, sizes...)
}

// TestRandomFaultsLoseNothing breaks the link at random places and in random ways while messages go in all directions.
func TestRandomFaultsLoseNothing(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t, shortSilence)
	const count, faults = 120, 12
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	sizes := make([]int, count)
	for n := range sizes {
		sizes[n] = random.IntN(1 << random.IntN(19))
	}
	send := func(n int) {
		for class := range classes {
			require.NoError(t, a.Send("b", message(class, n, sizes[n])))
			require.NoError(t, b.Send("a", message(class, n, sizes[n])))
		}
	}
	for n := range sizes {
		send(n)
		if n%(count/faults) > 0 {
			continue
		}
		switch random.IntN(4) {
		case 0:
			link.Reset()
		case 1:
			link.ResetAfter(random.Int64N(200_000))
		case 2:
			link.HalfOpen()
		case 3:
			link.Outage(time.Duration(random.IntN(100)) * time.Millisecond)
		}
		if random.IntN(2) == 0 {
			poll(t, "a connection", b.connected)
		}
	}
	for _, m := range []*member{a, b} {
		other := map[string]string{"a": "b", "b": "a"}[m.id]
		all := m.awaitMessages(int(classes) * count)
		for class := range classes {
			requireSeries(t, all, other, class, sizes...)
		}
		assert.Empty(t, m.allLost())
	}
}

func TestHotMessageDoesNotWaitForABulkOne(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t)
	link.SetBandwidth(400e6)
	const bulk = 100 << 20 // at least 2 s
	require.NoError(t, a.Send("b", message(Bulk, 0, bulk)))
	poll(t, "some of the bulk message", func() bool { return link.Forwarded() > 4<<20 })
	for n := range 3 {
		before := link.Forwarded()
		require.NoError(t, a.Send("b", message(Hot, n, 1<<20)))
		b.awaitMessages(n + 1)
		// Counted in bytes, because time depends on the machine: the hot message, what was under way, and the share of
		// bulk.
		assert.Less(t, link.Forwarded()-before, int64(8<<20))
	}
	assert.Less(t, link.Forwarded(), int64(bulk), "the bulk message is still under way")
}

func TestManySendersAndThreeMembers(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	var all []*member
	var peers []Peer
	for _, id := range []string{"a", "b", "c"} {
		m := start(t, ca, id, "127.0.0.1:0")
		all, peers = append(all, m), append(peers, m.peer())
	}
	for _, m := range all {
		require.NoError(t, m.Connect(7, peers))
	}
	var senders sync.WaitGroup
	const count = 50
	for _, m := range all {
		for _, p := range peers {
			for class := range classes {
				if p.ID == m.id {
					continue
				}
				senders.Go(func() {
					for n := range count {
						assert.NoError(t, m.Send(p.ID, message(class, n, 1000*n)))
					}
				})
			}
		}
	}
	senders.Wait()
	sizes := make([]int, count)
	for n := range sizes {
		sizes[n] = 1000 * n
	}
	for _, m := range all {
		received := m.awaitMessages(2 * int(classes) * count)
		for _, p := range peers {
			for class := range classes {
				if p.ID != m.id {
					requireSeries(t, received, p.ID, class, sizes...)
				}
			}
		}
	}
}

func TestDialUsesTheHookAndAllAddresses(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	a := start(t, ca, "a", "127.0.0.1:0")
	tried := make(chan string, 100)
	b := start(t, ca, "b", "", func(o *Options) {
		o.Network.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			tried <- address
			if address == "dead" {
				return nil, errors.New("it is dead")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	})
	require.NoError(t, a.Connect(1, []Peer{{ID: "b"}}))
	require.NoError(t, b.Connect(1, []Peer{{ID: "a", Addresses: []string{"dead", a.address()}}}))
	require.NoError(t, b.Send("a", message(Hot, 0, 10)))
	a.awaitMessages(1)
	assert.Equal(t, "dead", <-tried)
	assert.Equal(t, a.address(), <-tried)

	require.NoError(t, b.Connect(2, []Peer{{ID: "a", Addresses: []string{"dead"}}}))
	b.awaitNote("no connection to member a: it is dead")
}

func TestSilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t, func(o *Options) {
		if o.Self == "b" {
			o.timing.hello = time.Second
		}
	})
	link.Hang()
	connect(t, 2, a, b, link)
	b.awaitNote("no connection to member a: member a has not answered the hello within 1s")
	link.Resume()
	require.NoError(t, b.Send("a", message(Hot, 0, 10)))
	requireSeries(t, a.awaitMessages(1), "b", Hot, 10)
}

func TestFlushWaitsAndFails(t *testing.T) {
	t.Parallel()
	a, b, link := couple(t)
	require.NoError(t, b.Send("a", message(Hot, 0, 10)))
	require.NoError(t, b.Flush(context.Background(), "a"))
	link.Hang()
	require.NoError(t, b.Send("a", message(Hot, 1, 10)))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	err := b.Flush(ctx, "a")
	require.ErrorContains(t, err, `10 bytes to member "a" are not acknowledged`)
	require.NotErrorIs(t, err, ErrUnreachable)
	link.Resume()
	require.NoError(t, b.Flush(context.Background(), "a"))
	requireSeries(t, a.awaitMessages(2), "b", Hot, 10, 10)
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Send("a", message(Hot, 2, 10)), net.ErrClosed)
	require.ErrorIs(t, b.Connect(9, nil), net.ErrClosed)
	require.EqualError(t, a.awaitLost(), "the member has left", "at once, not after the grace period")
	require.Empty(t, a.allNotes(), "Lost reports it")
}

// TestDefaultTimingFindsFaultsWithinSixSeconds adds up what passes between the last byte and the end of a connection.
func TestDefaultTimingFindsFaultsWithinSixSeconds(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	o, err := Options{Self: "a", TLS: ca.issue("a"), Identify: ca.identify, Receive: func(string, Message) {}}.withDefaults()
	require.NoError(t, err)
	assert.Less(t, o.timing.silence+o.timing.silence/20, 6*time.Second)
	assert.Less(t, 3*o.timing.ping, o.timing.silence, "a few pings may be late")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	good := Options{Self: "a", TLS: ca.issue("a"), Identify: ca.identify, Receive: func(string, Message) {}}
	for want, change := range map[string]func(*Options){
		`member ID ""`: func(o *Options) { o.Self = "" },
		"the TLS config does not demand certificates of clients": func(o *Options) { o.TLS = &tls.Config{} },
		"Options.Identify and Options.Receive are required":      func(o *Options) { o.Receive = nil },
		"transport: listen tcp: lookup nowhere.invalid":          nil,
	} {
		o, address := good, ""
		if change == nil {
			address = "nowhere.invalid:0"
		} else {
			change(&o)
		}
		_, err := Listen(address, o)
		require.ErrorContains(t, err, want)
	}
}

// Two nodes without addresses: one dials, and the other accepts through a listener that it was given.
func TestListenerOfANodeWithoutAddress(t *testing.T) {
	a := newAuthority(t, "run")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	waits := start(t, a, "a", "", func(o *Options) { o.Network.Listener = l })
	dials := start(t, a, "b", "", func(o *Options) {
		o.Network.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if address != "a path" {
				return nil, fmt.Errorf("found address %s", address)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}
	})
	native := start(t, a, "0", "127.0.0.1:0")
	at := []string{fmt.Sprint("127.0.0.1:", native.Port())}
	require.NoError(t, native.Connect(1, []Peer{{ID: "a"}, {ID: "b"}}))
	require.NoError(t, waits.Connect(1, []Peer{{ID: "a"}, {ID: "b"}, {ID: "0", Addresses: at}}))
	require.NoError(t, dials.Connect(1, []Peer{{ID: "a", Addresses: []string{"a path"}}, {ID: "b"}}))
	require.NoError(t, waits.Send("b", Message{Header: []byte("x")}))
	require.NoError(t, dials.Send("a", Message{Header: []byte("y")}))
	require.NoError(t, waits.Send("0", Message{Header: []byte("z")}))
	assert.Equal(t, "x", string(dials.awaitMessages(1)[0].Header))
	assert.Equal(t, "y", string(waits.awaitMessages(1)[0].Header))
	assert.Equal(t, "z", string(native.awaitMessages(1)[0].Header))
}
