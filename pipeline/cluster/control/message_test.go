//go:build !js

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mailbox whose functions are slow stops who fills it.
func TestMailboxIsBounded(t *testing.T) {
	t.Parallel()
	const size, count = 1 << 20, 200
	b, stopped, ran := newMailbox(), make(chan struct{}), make(chan int, count)
	go func() {
		for range count {
			b.putBytes(func() { ran <- b.waiting() }, size, stopped)
		}
	}()
	go b.run(stopped)
	for range count {
		assert.LessOrEqual(t, receive(t, ran), maxWaiting+size)
	}
	close(stopped)
	b.putBytes(func() {}, 2*maxWaiting, stopped)
	b.putBytes(func() {}, 1, stopped) // does not wait for room that never comes
}

// FuzzDecode decodes messages of any content. What can be decoded is encoded to the same again.
func FuzzDecode(f *testing.F) {
	m := message{kind: messageRequest, id: 7, name: "x", data: []byte("data")}.encode()
	f.Add(m.Header, m.Payload[0])
	f.Fuzz(func(t *testing.T, header, data []byte) {
		m, err := decode(transport.Message{Header: header, Payload: [][]byte{data}})
		if err != nil {
			return
		}
		again := m.encode()
		require.True(t, bytes.Equal(header, again.Header) && bytes.Equal(data, again.Payload[0]))
	})
}

func FuzzBodies(f *testing.F) {
	f.Add(encodeFailure(ErrQueueFull))
	f.Add(encodeJSON(rejection{Text: "x"}))
	f.Add(encodeJSON(Ending{Outcome: Failed, Text: "x"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if decodeFailure("m", b).Error() == "" || explain(&transport.Refusal{Code: transport.Refused, Text: string(b)}).Error() == "" {
			t.Fatal("no text")
		}
	})
}

// FuzzReceive feeds a coordinator messages of a member, and a member those of its coordinator.
func FuzzReceive(f *testing.F) {
	a, err := identity.NewAuthority()
	require.NoError(f, err)
	coordinator, err := a.Coordinator()
	require.NoError(f, err)
	own, err := a.Member("m")
	require.NoError(f, err)
	s, c := NewServer(ServerOptions{}), NewClient(ClientOptions{})
	c.Handle("x", func(_ context.Context, b []byte) ([]byte, error) { return b, nil })
	host, err := transport.Listen("127.0.0.1:0", transport.Options{Self: identity.CoordinatorID, TLS: coordinator.TLS(),
		Identify: coordinator.Identify, Receive: func(string, transport.Message) {}, Sessions: s.Sessions()})
	require.NoError(f, err)
	node, err := transport.Listen("", transport.Options{Self: own.Identity().ID, TLS: own.TLS(), Identify: own.Identify,
		Receive: func(string, transport.Message) {}, Sessions: c.Sessions()})
	require.NoError(f, err)
	at := []string{fmt.Sprint("127.0.0.1:", host.Port())}
	require.NoError(f, c.Connect(f.Context(), node, transport.Peer{ID: identity.CoordinatorID, Addresses: at}, nil))
	f.Cleanup(func() { require.NoError(f, errors.Join(c.Close(), s.End(Ending{}), node.Close(), host.Close())) })
	session := s.all()[0].session
	for _, m := range []message{{kind: messageRequest, id: 1, name: "x"}, {kind: messageReply, id: 1},
		{kind: messageFailure, id: 1, data: []byte("{}")}, {kind: messageCancel, id: 1}} {
		t := m.encode()
		f.Add(t.Header, t.Payload[0])
	}
	f.Fuzz(func(t *testing.T, header, data []byte) {
		s.mu.Lock()
		clear(s.blocked)
		s.mu.Unlock()
		if s.of(session) == nil {
			s.add(session, nil)
		}
		m := transport.Message{Header: header, Payload: [][]byte{data}}
		s.receive(session, m)
		if len(header) > 0 && messageKind(header[0]) == messageEnd {
			return // it ends the client
		}
		c.receive(c.session.session, m)
	})
}
