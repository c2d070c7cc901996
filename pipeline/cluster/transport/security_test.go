package transport

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// target starts member a, which waits for members b and c in epoch 1.
func target(t testing.TB, adjust ...func(*Options)) (*authority, *member) {
	t.Helper()
	ca := newAuthority(t, "run")
	a := start(t, ca, "a", "127.0.0.1:0", adjust...)
	require.NoError(t, a.Connect(1, []Peer{{ID: "b"}, {ID: "c"}}))
	return ca, a
}

func TestConnectionsWithoutARightCertificateAreRefused(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	other := newAuthority(t, "run")
	foreign := other.issue("b")
	foreign.RootCAs = ca.pool // it trusts us, but we do not trust it
	for name, c := range map[string]struct {
		config      *tls.Config
		here, there string
	}{
		"no certificate": {&tls.Config{RootCAs: ca.pool, ServerName: "member", ClientAuth: tls.RequireAnyClientCert},
			"client didn't provide a certificate", "certificate required"},
		"another CA":              {foreign, "certificate signed by unknown authority", "unknown certificate authority"},
		"another CA, also for us": {other.issue("b"), "bad certificate", "certificate signed by unknown authority"},
		"another run's": {ca.issueFor("other", "b"), "the certificate is of run other, this is run run",
			"the certificate is of run other, this is run run"},
		"another member's": {ca.issue("c"), `it claims to be "b", but its certificate names "c"`,
			`it claims to be "b", but its certificate names "c"`},
		"of a member not expected": {nil, `member "x" is not in epoch 1`, `member "x" is not in epoch 1`},
	} {
		t.Run(name, func(t *testing.T) {
			id := "b"
			if c.config == nil {
				id, c.config = "x", ca.issue("x")
			}
			b := startWith(t, ca, id, "", c.config)
			require.NoError(t, b.Connect(1, []Peer{a.peer()}))
			b.awaitNote(c.there)
			a.awaitNote(c.here)
			assert.False(t, b.connected())
			assert.Empty(t, b.allLost(), "until Grace is over")
		})
	}
}

func TestServerWithTheWrongNameIsRefused(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	b := start(t, ca, "b", "")
	require.NoError(t, b.Connect(1, []Peer{{ID: "c", Addresses: []string{a.address()}}}))
	b.awaitNote("the certificate at the address of member c names a")
	a.awaitNote("the certificate at the address of member c names a")
}

func TestStaleEpochIsRefused(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	require.NoError(t, a.Connect(2, []Peer{{ID: "b"}}))
	b := start(t, ca, "b", "")
	require.NoError(t, b.Connect(1, []Peer{a.peer()}))
	const reason = "epoch 1 is over, member a is in epoch 2"
	b.awaitNote(reason)
	a.awaitNote(reason)
	require.NoError(t, b.Connect(3, []Peer{a.peer()})) // a is not there yet
	require.NoError(t, b.Send("a", message(Hot, 0, 10)))
	require.NoError(t, a.Connect(3, []Peer{{ID: "b"}}))
	requireSeries(t, a.awaitMessages(1), "b", Hot, 10)
}

func TestRestartedMemberIsLost(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	b := start(t, ca, "b", "")
	link, err := slowlink.New(a.address())
	require.NoError(t, err)
	defer func() { require.NoError(t, link.Close()) }()
	require.NoError(t, b.Connect(1, []Peer{{ID: "a", Addresses: []string{link.Address()}}}))
	poll(t, "a connection", b.connected)
	second := start(t, ca, "b", "")
	require.NoError(t, second.Connect(1, []Peer{a.peer()}))
	second.awaitNote("another process of member b is connected")
	link.Refuse()
	link.Reset()
	require.ErrorContains(t, a.awaitLost(), "member b was restarted within epoch 1")
	require.ErrorContains(t, second.awaitLost(), "member b was restarted within epoch 1")
}

func TestFragmentsThatLieEndTheLink(t *testing.T) { // it measures what the process allocates: no other test may run
	const limit = 1 << 20
	continuation := binary.LittleEndian.AppendUint64([]byte{nextFragment}, 0)
	for name, c := range map[string]struct {
		fragment []byte
		reason   string
	}{
		"2 GB declared":            {fragment(0, 0, 10, 2<<30), "a message declares a payload of at least 2147483648 bytes, expected at most 1048576"},
		"a sum of sizes overflows": {fragment(0, 0, 10, 1<<63, 1<<63, 20), "a message declares a payload"},
		"many small sizes":         {fragment(0, 0, 10, limit/2, limit/2, 1), "a message declares a payload"},
		"too many tensors":         {fragment(0, 0, 0, make([]uint64, maxTensors+1)...), "a message declares 4097 tensors"},
		"tensors missing":          {fragment(0, 0, 0, make([]uint64, 9)...)[:38], "a message declares 9 tensors"},
		"oversized header":         {fragment(0, maxHeader+1, 0), "a message declares a header of 4097 bytes"},
		"header of 4 GB":           {fragment(0, 1<<32-1, 0), "a message declares a header of 4294967295 bytes"},
		"more bytes than declared": {fragment(0, 0, 11, 10), "fragment 0 brings 11 bytes, but its message lacks 10"},
		"no bytes":                 {fragment(0, 0, 0, 10), "fragment 0 is empty"},
		"a gap":                    {fragment(1, 0, 10, 10), "fragment 1 arrived, expected 0"},
		"no beginning":             {continuation, "fragment 0 has kind 2 in the wrong place"},
		"an end in the middle":     {binary.LittleEndian.AppendUint64([]byte{lastFragment}, 0), "fragment 0 has kind 3 in the wrong place"},
		"unknown kind":             {append([]byte{9}, continuation[1:]...), "fragment 0 has kind 9"},
		"empty":                    {nil, "a fragment ends within its prefix"},
		"short":                    {continuation[:5], "a fragment ends within its prefix"},
		"larger than a fragment":   {make([]byte, maxFragment+1), "received message larger than max"},
	} {
		t.Run(name, func(t *testing.T) {
			ca, a := target(t, func(o *Options) { o.MaxMessage = limit })
			r := intrude(t, ca, "b", a)
			r.sayHello()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r.sendFragment(c.fragment)
			assert.Contains(t, r.reason(), c.reason)
			require.ErrorContains(t, a.awaitLost(), c.reason)
			runtime.ReadMemStats(&after)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
			a.awaitNote("member b breaks the protocol and is refused: ")
			require.NoError(t, a.Send("c", message(Hot, 0, 1)), "other links go on")
		})
	}
}

func TestMessageLargerThanTheReceiversLimitIsRefused(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	for _, large := range []string{"a", "b"} { // a is dialed, b dials
		limit := func(id string) func(*Options) {
			return func(o *Options) {
				if id != large {
					o.MaxMessage = 1 << 20
				}
			}
		}
		a, b := start(t, ca, "a", "127.0.0.1:0", limit("a")), start(t, ca, "b", "", limit("b"))
		require.NoError(t, a.Connect(1, []Peer{{ID: "b"}}))
		require.NoError(t, b.Connect(1, []Peer{a.peer()}))
		from, to := map[string]*member{"a": a, "b": b}[large], map[string]*member{"a": b, "b": a}[large]
		require.ErrorContains(t, to.Send(from.id, message(Hot, 0, 2<<20)), "message of 2097152 bytes: expected at most 1048576")
		require.NoError(t, from.Send(to.id, message(Hot, 0, 2<<20)))
		const reason = "a message declares a payload of at least 1398102 bytes, expected at most 1048576"
		require.ErrorContains(t, to.awaitLost(), reason)
		require.ErrorContains(t, from.awaitLost(), "member "+to.id+" says: "+reason)
	}
}

func TestMessagesThatCannotBeSentAreRefused(t *testing.T) {
	t.Parallel()
	_, a := target(t, func(o *Options) { o.MaxMessage = 10 })
	for reason, m := range map[string]Message{
		"class 3: expected Hot, Bulk or Urgent":       {Class: classes},
		"header of 4097 bytes: expected at most 4096": {Header: make([]byte, 4097)},
		"4097 tensors: expected at most 4096":         {Payload: make([][]byte, 4097)},
		"message of 11 bytes: expected at most 10":    {Payload: [][]byte{make([]byte, 11)}},
	} {
		require.ErrorContains(t, a.Send("b", m), `to member "b": `+reason)
	}
	require.ErrorContains(t, a.Send("x", Message{}), `member "x" is not in epoch 1`)
}

func TestControlMessagesThatLieEndTheLink(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		message []byte
		reason  string
	}{
		"acknowledges too much": {encodeAck([classes]uint64{7}), "7 fragments are acknowledged, but 0 were sent"},
		"unknown kind":          {[]byte{99}, "a control message has kind 99"},
		"empty":                 {nil, "a control message has kind 0"},
		"short":                 {encodeAck([classes]uint64{})[:9], "a control message of kind 3 has a wrong length"},
		"long":                  {append(ping{}.encode(), 0), "a control message of kind 4 has a wrong length"},
		"a second hello":        {hello{version: protocolVersion}.encode(), "an unexpected control message"},
	} {
		t.Run(name, func(t *testing.T) {
			ca, a := target(t)
			r := intrude(t, ca, "b", a)
			r.sayHello()
			r.send(c.message)
			assert.Contains(t, r.reason(), c.reason)
			require.ErrorContains(t, a.awaitLost(), c.reason)
		})
	}
}

func TestHellosThatLieAreRefused(t *testing.T) {
	t.Parallel()
	good := hello{version: protocolVersion, from: "b", to: "a", epoch: 1, incarnation: 5}
	change := func(f func(*hello)) []byte {
		h := good
		f(&h)
		return h.encode()
	}
	for name, c := range map[string]struct {
		message []byte
		reason  string
	}{
		"another version":     {change(func(h *hello) { h.version = 9 }), "protocol version 9, expected 2"},
		"another member":      {change(func(h *hello) { h.from = "c" }), `it claims to be "c", but its certificate names "b"`},
		"meant for another":   {change(func(h *hello) { h.to = "c" }), `it wants member "c", but this is "a"`},
		"a session":           {change(func(h *hello) { h.epoch = 0 }), "member a accepts no sessions"},
		"received what never": {change(func(h *hello) { h.received[Bulk] = 1 }), "1 fragments are acknowledged, but 0 were sent"},
		"no hello":            {ping{}.encode(), "the first control message is transport.ping, expected a hello"},
		"text beyond its end": {[]byte{kindHello, protocolVersion, 0, 255, 0, 'b'}, "a control message of kind 1 has a wrong length"},
	} {
		t.Run(name, func(t *testing.T) {
			ca, a := target(t)
			r := intrude(t, ca, "b", a)
			r.send(c.message)
			assert.Contains(t, r.reason(), c.reason)
			a.awaitNote(c.reason)
		})
	}
}

func TestStreamsWithoutAHelloAreRefused(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	r := intrude(t, ca, "b", a)
	hot, err := r.stream("Hot")
	require.NoError(t, err)
	require.ErrorContains(t, hot.RecvMsg(&arrived{}), "a hot stream without a hello")
	a.awaitNote("a stream of member b at 127.0.0.1 is refused: it has not said hello")
}

func TestSecondStreamOfAClassEndsTheLink(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	r := intrude(t, ca, "b", a)
	r.sayHello()
	_, err := r.stream("Hot")
	require.NoError(t, err)
	assert.Contains(t, r.reason(), "a second hot stream")
	require.ErrorContains(t, a.awaitLost(), "a second hot stream")
}

func TestLimitsOfHTTP(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	t.Run("2 GB declared", func(t *testing.T) {
		f := openFrames(t, ca.issue("b"), a)
		f.request("Control", 0)
		require.NoError(t, f.WriteData(1, false, []byte{0, 0x7f, 0xff, 0xff, 0xff, 1, 2, 3}))
		const reason = "received message larger than max (2147483647 vs. "
		assert.Contains(t, f.status(), reason)
		a.awaitNote(reason)
	})
	t.Run("oversized header", func(t *testing.T) {
		f := openFrames(t, ca.issue("b"), a)
		f.request("Control", 100<<10)
		assert.Contains(t, f.status(), "connection: ")
		a.awaitNote("a connection from 127.0.0.1 ended without a hello")
	})
	t.Run("unknown method", func(t *testing.T) {
		f := openFrames(t, ca.issue("b"), a)
		f.request("Other", 0)
		assert.Contains(t, f.status(), "unknown method Other")
	})
}

func TestSlowPeersAreClosed(t *testing.T) {
	t.Parallel()
	ca, a := target(t, func(o *Options) { o.timing.hello, o.timing.progress = 2*time.Second, 600*time.Millisecond })
	untilClosed := func(c net.Conn) {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(waitLimit)))
		_, err := io.Copy(io.Discard, c)
		require.NotErrorIs(t, err, net.ErrClosed)
		require.False(t, err != nil && strings.Contains(err.Error(), "timeout"), "%v", err)
	}
	t.Run("no TLS", func(t *testing.T) {
		t.Parallel()
		c, err := net.Dial("tcp", a.address())
		require.NoError(t, err)
		defer c.Close()
		untilClosed(c)
		a.awaitNote("a connection from 127.0.0.1 is refused: ")
	})
	t.Run("no HTTP", func(t *testing.T) {
		t.Parallel()
		config := ca.issue("b")
		config.NextProtos = []string{"h2"}
		c, err := tls.Dial("tcp", a.address(), config)
		require.NoError(t, err)
		defer c.Close()
		untilClosed(c)
	})
	t.Run("no stream", func(t *testing.T) {
		t.Parallel()
		untilClosed(openFrames(t, ca.issue("b"), a).conn)
	})
	t.Run("no hello", func(t *testing.T) {
		t.Parallel()
		r := intrude(t, ca, "b", a)
		assert.Contains(t, r.reason(), "no hello within 2s")
		a.awaitNote("member b at 127.0.0.1 is refused: no hello within 2s")
	})
	t.Run("a message byte by byte", func(t *testing.T) {
		t.Parallel()
		f := openFrames(t, ca.issue("b"), a)
		f.request("Control", 0)
		h := hello{version: protocolVersion, from: "b", to: "a", epoch: 1, incarnation: 5}.encode()
		require.NoError(t, f.WriteData(1, false, append([]byte{0, 0, 0, 0, byte(len(h))}, h...)))
		require.NoError(t, f.WriteData(1, false, []byte{0, 0, 0, 0x10, 0}))
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			for f.WriteData(1, false, []byte{0}) == nil {
				select {
				case <-time.After(50 * time.Millisecond):
				case <-stop:
					return
				}
			}
		}()
		a.awaitNote("no whole control message from member b for 600ms")
		assert.Contains(t, f.status(), "no whole control message from member b for 600ms")
	})
}

func TestTooManyConnectionsWithoutAHelloAreClosed(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	var all []net.Conn
	for range maxPending + 20 {
		c, err := net.Dial("tcp", a.address())
		require.NoError(t, err)
		all = append(all, c)
	}
	a.awaitNote("128 others have not said hello yet")
	for _, c := range all {
		_ = c.Close()
	}
	b := start(t, ca, "b", "")
	require.NoError(t, b.Connect(1, []Peer{a.peer()}))
	poll(t, "a connection", b.connected)
}

func TestNoiseIsRefused(t *testing.T) {
	t.Parallel()
	_, a := target(t)
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	for _, b := range [][]byte{noise, []byte("GET / HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte{0x16, 3, 1, 0xff, 0xff}, 1000)} {
		c, err := net.Dial("tcp", a.address())
		require.NoError(t, err)
		_, _ = c.Write(b)
		_ = c.SetReadDeadline(time.Now().Add(waitLimit))
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	a.awaitNote("a connection from 127.0.0.1 is refused: tls: ")
	assert.Empty(t, a.allLost())
}
