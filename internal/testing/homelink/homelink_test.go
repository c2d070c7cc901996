package homelink

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pair connects two machines.
func pair(t *testing.T, a, b *Machine) (near, far net.Conn) {
	t.Helper()
	l, err := b.Listen(b.Host() + ":0")
	require.NoError(t, err)
	defer l.Close()
	var accepting sync.WaitGroup
	accepting.Go(func() { far, err = l.Accept() })
	near, failed := a.Dial(t.Context(), l.Addr().String())
	accepting.Wait()
	require.NoError(t, failed)
	require.NoError(t, err)
	return near, far
}

// within runs a test of a network of three machines in a bubble. The first has an uplink of 1,000 bytes a second.
func within(t *testing.T, f func(t *testing.T, a, b, c *Machine)) {
	synctest.Test(t, func(t *testing.T) {
		n := New(100, 200)
		defer n.Close()
		f(t, n.Add(Connection{Up: 1000, Latency: 50 * time.Millisecond}),
			n.Add(Connection{Down: 4000, Latency: 20 * time.Millisecond}), n.Add(Connection{}))
	})
}

// carry sends bytes and returns how long they take.
func carry(t *testing.T, from, to net.Conn, bytes int) time.Duration {
	began := time.Now()
	var writing sync.WaitGroup
	writing.Go(func() {
		n, err := from.Write(make([]byte, bytes))
		assert.NoError(t, err)
		assert.Equal(t, bytes, n)
	})
	_, err := io.ReadFull(to, make([]byte, bytes))
	assert.NoError(t, err)
	writing.Wait()
	return time.Since(began)
}

// Bytes take the latency and the time of both links, and connections share an uplink.
func TestLinksTakeTime(t *testing.T) {
	within(t, func(t *testing.T, a, b, c *Machine) {
		near, far := pair(t, a, b)
		assert.Equal(t, time.Second+50*time.Millisecond+25*time.Millisecond, carry(t, near, far, 1000), "the last packet passes the downlink")
		assert.Equal(t, 50*time.Millisecond, carry(t, far, near, 1000), "the way back has no limit")
		other, third := pair(t, a, c)
		var both sync.WaitGroup
		both.Go(func() { assert.InDelta(t, 2, carry(t, other, third, 1000).Seconds(), 0.2) })
		assert.InDelta(t, 2, carry(t, near, far, 1000).Seconds(), 0.2)
		both.Wait()
		up, _ := a.Carried()
		assert.Equal(t, Carried{3000, 30}, up)
	})
}

// A machine that hangs loses nothing, one that is reset everything, and a connection that is closed ends behind its
// bytes.
func TestMachinesFail(t *testing.T) {
	within(t, func(t *testing.T, a, b, c *Machine) {
		near, far := pair(t, b, c)
		b.Hang()
		time.AfterFunc(time.Hour, b.Resume)
		assert.Equal(t, time.Hour, carry(t, near, far, 10))

		_, err := near.Write([]byte("bye"))
		require.NoError(t, err)
		require.NoError(t, near.Close())
		text, err := io.ReadAll(far)
		require.NoError(t, err)
		assert.Equal(t, "bye", string(text))
		_, err = near.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)

		near, far = pair(t, b, c)
		b.Reset()
		_, err = far.Read(make([]byte, 1))
		require.ErrorIs(t, err, errReset)
		_, err = near.Write(make([]byte, 1000))
		require.ErrorIs(t, err, errReset)
		l, err := c.Listen(c.Host() + ":7")
		require.NoError(t, err)
		defer l.Close()
		_, err = b.Dial(t.Context(), l.Addr().String())
		require.ErrorContains(t, err, "refused")
		b.Restore()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Dial(ctx, l.Addr().String())
		require.ErrorIs(t, err, context.DeadlineExceeded, "nobody accepts")
	})
}

// Deadlines end what waits, and may be changed.
func TestDeadlines(t *testing.T) {
	within(t, func(t *testing.T, a, _, c *Machine) {
		near, _ := pair(t, a, c)
		began := time.Now()
		for range 2 {
			require.NoError(t, near.SetReadDeadline(time.Now().Add(time.Minute)))
			require.NoError(t, near.SetReadDeadline(time.Now().Add(time.Second)))
			_, err := near.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		require.NoError(t, near.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := near.Write(make([]byte, 10_000))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.InDelta(t, 1200, n, 100, "a second of the uplink, and the buffer")
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}
