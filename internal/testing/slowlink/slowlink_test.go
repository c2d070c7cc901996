package slowlink

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const waitLimit = 30 * time.Second

// echo starts a server that sends back what it reads, and a proxy before it. ended receives how each connection of the
// server ended.
func echo(t *testing.T) (p *Proxy, ended chan error) {
	t.Helper()
	before := runtime.NumGoroutine()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended = make(chan error, 10)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				_, err := io.Copy(c, c)
				_ = c.Close()
				ended <- err
			})
		}
	})
	p, err = New(l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, p.Close())
		_ = l.Close()
		work.Wait()
		for deadline := time.Now().Add(waitLimit); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
	return p, ended
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(waitLimit)))
	return c
}

// exchange sends text and reads it back.
func exchange(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
	read(t, c, text)
}

func read(t *testing.T, c net.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
}

// requireNothing checks that nothing arrives for a short time.
func requireNothing(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(waitLimit)))
}

func TestForwards(t *testing.T) {
	p, ended := echo(t)
	a, b := dial(t, p), dial(t, p)
	exchange(t, a, "one")
	exchange(t, b, "two")
	assert.Equal(t, 2, p.Connections())
	assert.Equal(t, int64(12), p.Forwarded())
	data := bytes.Repeat([]byte("0123456789"), 300_000)
	go func() { _, _ = a.Write(data); _ = a.(*net.TCPConn).CloseWrite() }()
	all, err := io.ReadAll(a)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(data, all))
	require.NoError(t, <-ended)
}

func TestLatencyAndBandwidthTakeTime(t *testing.T) {
	p, _ := echo(t)
	c := dial(t, p)
	p.SetLatency(20 * time.Millisecond)
	begin := time.Now()
	exchange(t, c, "x")
	assert.GreaterOrEqual(t, time.Since(begin), 40*time.Millisecond)
	p.SetLatency(0)
	p.SetBandwidth(8e6)
	begin = time.Now()
	go func() { _, _ = c.Write(make([]byte, 100_000)) }()
	_, err := io.ReadFull(c, make([]byte, 100_000))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
}

func TestHangHoldsBytes(t *testing.T) {
	p, _ := echo(t)
	c := dial(t, p)
	exchange(t, c, "before")
	p.Hang()
	_, err := c.Write([]byte("during"))
	require.NoError(t, err)
	requireNothing(t, c)
	later := dial(t, p)
	_, err = later.Write([]byte("new"))
	require.NoError(t, err)
	requireNothing(t, later)
	p.Resume()
	read(t, c, "during")
	read(t, later, "new")
	over := p.Outage(50 * time.Millisecond)
	exchange(t, c, "outage")
	<-over
	p.Outage(time.Hour) // Close ends it
}

func TestResetBreaksBothSides(t *testing.T) {
	p, ended := echo(t)
	c := dial(t, p)
	exchange(t, c, "before")
	p.Reset()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorIs(t, <-ended, syscall.ECONNRESET)
	exchange(t, dial(t, p), "again")
}

func TestResetAfterLetsSomeBytesThrough(t *testing.T) {
	p, _ := echo(t)
	c := dial(t, p)
	exchange(t, c, "before")
	p.ResetAfter(100_000)
	before := p.Forwarded()
	go func() { _, _ = c.Write(make([]byte, 1<<20)) }()
	_, err := io.Copy(io.Discard, c)
	require.Error(t, err)
	assert.GreaterOrEqual(t, p.Forwarded()-before, int64(100_000))
	assert.Less(t, p.Forwarded()-before, int64(1<<20))
}

func TestHalfOpenClosesTheTargetOnly(t *testing.T) {
	p, ended := echo(t)
	c := dial(t, p)
	exchange(t, c, "before")
	p.HalfOpen()
	require.Error(t, <-ended)
	for range 3 {
		_, err := c.Write([]byte("into the void"))
		require.NoError(t, err)
		requireNothing(t, c)
	}
}

func TestRefuseResetsNewConnections(t *testing.T) {
	p, _ := echo(t)
	c := dial(t, p)
	exchange(t, c, "before")
	p.Refuse()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	later, err := net.Dial("tcp", p.Address())
	if err == nil {
		_, err = later.Read(make([]byte, 1))
		_ = later.Close()
	}
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF), "%v", err)
	p.Resume()
	exchange(t, dial(t, p), "again")
}

func TestTargetThatDoesNotListen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	p, err := New(address)
	require.NoError(t, err)
	c, err := net.Dial("tcp", p.Address())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	require.Error(t, err)
	require.NoError(t, p.Close())
}
