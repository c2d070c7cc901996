package transport

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An acknowledgment may be newer than the state from which a connection goes on.
func TestAcknowledgmentsPassTheCursor(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	for n := range 3 {
		o.push(message(Hot, n, 10))
	}
	require.NoError(t, o.resume(1, 0))
	for range 3 {
		_, ok := o.take(1)
		require.True(t, ok)
	}
	require.NoError(t, o.resume(2, 1))
	require.NoError(t, o.acknowledge(2))
	got, ok := o.take(2)
	require.True(t, ok)
	assert.Equal(t, encodeFragment(message(Hot, 2, 10), 2, 0).Materialize(), got.Materialize())
	require.NoError(t, o.resume(3, 2))
	require.NoError(t, o.acknowledge(3))
	_, ok = o.take(3)
	assert.False(t, ok)
	assert.False(t, o.pending())
	o.push(message(Hot, 3, 10))
	_, ok = o.take(3)
	assert.True(t, ok)
}

// What a connection brings after another has taken its place is not accepted: the peer was told what had arrived.
func TestFragmentsOfAnEndedConnection(t *testing.T) {
	t.Parallel()
	i := newInbox(Hot, 1<<20)
	first := encode(message(Hot, 0, 10), 0)[0]
	require.ErrorIs(t, i.accept(0, reader(first)), errReplaced)
	i.resume(1)
	i.resume(2)
	require.ErrorIs(t, i.accept(1, reader(first)), errReplaced)
	assert.Zero(t, i.accepted())
	require.NoError(t, i.accept(2, reader(first)))
	assert.Equal(t, uint64(1), i.accepted())
	i.clear()
	_, ok := i.take()
	assert.False(t, ok)
	require.ErrorIs(t, i.accept(2, reader(encode(message(Hot, 1, 10), 1)[0])), errReplaced)
}

// Connections that come too fast are refused, and do not count among those that wait for their hello.
func TestRefusedConnectionsLeaveTheWayFree(t *testing.T) {
	t.Parallel()
	ca, a := target(t)
	a.listener.handshakes.SetLimit(0)
	a.listener.handshakes.SetBurst(0)
	for range 2 * maxPending {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", a.address())
		require.NoError(t, err)
		_, _ = io.ReadAll(c) // until the other side closes it
		require.NoError(t, c.Close())
	}
	a.awaitNote("more than 200 a second")
	a.listener.handshakes.SetBurst(2 * handshakesPerSecond)
	a.listener.handshakes.SetLimit(handshakesPerSecond)
	b := start(t, ca, "b", "")
	require.NoError(t, b.Connect(1, []Peer{a.peer()}))
	require.NoError(t, b.Send("a", message(Hot, 0, 10)))
	requireSeries(t, a.awaitMessages(1), "b", Hot, 10)
}
