package lossylink

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain runs the tests, or a host of one of them, which serves or dials.
func TestMain(m *testing.M) {
	Enter()
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) == 1 && arguments[0] == "serve":
		err = serve()
	case len(arguments) == 2 && arguments[0] == "dial":
		err = dial(arguments[1])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers what the first connection sends, and ends.
func serve() error {
	l, err := net.Listen("tcp", ":700")
	if err != nil {
		return err
	}
	fmt.Println("listening")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	if _, err = io.Copy(c, c); err != nil {
		return err
	}
	return c.Close()
}

// dial sends a text and prints the answer.
func dial(text string) error {
	c, err := net.Dial("tcp", Address(1)+":700")
	if err != nil {
		return err
	}
	if _, err = c.Write([]byte(text)); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}

// exchange has host 2 send a text to host 1 and returns the answer.
func exchange(t *testing.T, n *Network, text string, meanwhile func()) string {
	t.Helper()
	server := exec.Command(os.Args[0], "serve")
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	server.Stderr = os.Stderr
	require.NoError(t, n.Start(1, server))
	_, err = io.ReadFull(out, make([]byte, len("listening\n")))
	require.NoError(t, err)
	client := exec.Command(os.Args[0], "dial", text)
	var answer bytes.Buffer
	client.Stdout, client.Stderr = &answer, os.Stderr
	require.NoError(t, n.Start(2, client))
	meanwhile()
	require.NoError(t, client.Wait())
	require.NoError(t, server.Wait())
	return answer.String()
}

func omit(t *testing.T) {
	t.Helper()
	if Omitted() {
		t.Skip("omitted: NAMESPACES=none")
	}
}

// TCP gets all bytes through a link that delays and loses packets, and the test sees them.
func TestLinkDelaysAndLosesPackets(t *testing.T) {
	omit(t)
	const delay = 20 * time.Millisecond
	seen := 0
	n := New(Options{Delay: delay, Loss: 0.05, Seed: 1, Capture: func(packet []byte) {
		s, ok := Parse(packet)
		assert.True(t, ok)
		if s.To.Port() == 700 {
			seen += bytes.Count(s.Payload, []byte("0123456789"))
		}
	}})
	began := time.Now()
	text := strings.Repeat("0123456789", 10_000)
	assert.Equal(t, text, exchange(t, n, text, func() {}))
	assert.Greater(t, time.Since(began), 4*delay, "two round trips at least")
	n.Close()
	sent, lost := n.Packets()
	assert.Greater(t, sent, int64(150))
	assert.InDelta(t, 0.05, float64(lost)/float64(sent), 0.04, "%d of %d packets", lost, sent)
	assert.Greater(t, seen, 9_000, "but for those that lie in two packets")
}

// No packet passes a link that is cut.
func TestCutLinkIsSilent(t *testing.T) {
	omit(t)
	n := New(Options{})
	n.Cut()
	var restored atomic.Bool
	assert.Equal(t, "a", exchange(t, n, "a", func() {
		time.Sleep(300 * time.Millisecond)
		restored.Store(true)
		n.Restore()
	}))
	assert.True(t, restored.Load())
	n.Close()
	_, lost := n.Packets()
	assert.Positive(t, lost)
}

// A link carries no more than its bandwidth.
func TestLinkHasABandwidth(t *testing.T) {
	omit(t)
	n := New(Options{Bandwidth: 8e6})
	began := time.Now()
	text := strings.Repeat("0123456789", 10_000) // 0.1 s
	assert.Equal(t, text, exchange(t, n, text, func() {}))
	assert.Greater(t, time.Since(began), 100*time.Millisecond)
	n.Close()
}
