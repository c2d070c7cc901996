package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Nodes in different epochs have links as neighbors: one of them is dialed, or only dials. The end of such a link is no
// loss.
func TestNeighbors(t *testing.T) {
	for i, addresses := range []bool{true, false} { // of a
		ca := newAuthority(t, "run")
		address := "127.0.0.1:0"
		if !addresses {
			address = ""
		}
		a, b := start(t, ca, "a", address), start(t, ca, "b", "127.0.0.1:0")
		require.NoError(t, a.Connect(1, nil))
		require.NoError(t, b.Connect(3, nil))
		ofA, ofB := Neighbor{Peer: Peer{ID: "a"}, Epoch: 5}, Neighbor{Peer: Peer{ID: "b", Addresses: []string{b.address()}}, Epoch: 5}
		if addresses {
			ofA.Addresses = []string{a.address()}
		}
		require.NoError(t, a.Neighbors([]Neighbor{ofB}))
		require.NoError(t, b.Neighbors([]Neighbor{ofA}))
		require.NoError(t, a.Send("b", Message{Class: Bulk, Payload: [][]byte{{1}}}))
		require.NoError(t, b.Send("a", Message{Class: Hot, Payload: [][]byte{{2}}}))
		assert.Equal(t, uint64(5), b.awaitMessages(1)[0].Epoch)
		assert.Equal(t, [][]byte{{2}}, a.awaitMessages(1)[0].Payload)
		assert.True(t, slices.ContainsFunc(a.Links(), func(l Link) bool { return l.Peer == "b" && l.Connected }))

		require.NoError(t, a.Neighbors([]Neighbor{ofB}), "the link goes on")
		require.NoError(t, a.Send("b", Message{Class: Bulk, Payload: [][]byte{{3}}}))
		assert.Equal(t, [][]byte{{3}}, b.awaitMessages(2)[1].Payload)
		ofA.Epoch, ofB.Epoch, ofA.Limit = 7, 7, 1
		require.NoError(t, a.Neighbors([]Neighbor{ofB}), "another link")
		require.NoError(t, b.Neighbors([]Neighbor{ofA}))
		require.NoError(t, a.Send("b", Message{Class: Bulk, Payload: [][]byte{{4}}}))
		assert.Equal(t, uint64(7), b.awaitMessages(3)[2].Epoch)
		require.NoError(t, a.Send("b", Message{Class: []Class{Hot, Bulk}[i], Payload: [][]byte{{5}, {6}}[:1+i]}))
		require.Eventually(t, func() bool { return b.Send("a", Message{}) != nil }, waitLimit, time.Millisecond, "it sends too much")
		require.NoError(t, a.Connect(9, nil))
		assert.Error(t, a.Send("b", Message{}), "its epoch has ended")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		assert.Empty(t, slices.Concat(a.lost, b.lost))
	}
}

// A Pacer sends the first of its order first, and no more than a few at once to a peer. One that acknowledges nothing,
// or has much else to get, holds up no other.
func TestPacer(t *testing.T) {
	const piece = 1 << 20 // so that a window is four
	var sent []string
	left := map[string]int64{}
	p := NewPacer(func(a, b string) int { return int(a[1]) - int(b[1]) }, func(m string) string { return m[:1] },
		func(string) int64 { return piece }, func() map[string]int64 { return left },
		func(m string) {
			sent = append(sent, m)
			left[m[:1]] += piece
		})
	left["a"] = 100 * piece // of something else
	for _, m := range []string{"a2", "b1", "a3", "a1", "a1", "b2", "a4", "b3"} {
		p.Add(m)
	}
	assert.True(t, p.sendAll())
	assert.Equal(t, []string{"b1", "a1", "a1", "a2", "b2", "a3", "b3"}, sent)
	p.Add("b5")
	p.Add("b6")
	assert.EqualValues(t, 10*piece, p.Pending(func(string) bool { return true }))
	sent, left["b"] = nil, 1*piece
	assert.True(t, p.sendAll())
	assert.Equal(t, []string{"b5", "b6"}, sent, "a is stuck")
	p.flows["a"].fell = p.flows["a"].fell.Add(-pacerStuck)
	assert.EqualValues(t, 3*piece, p.Pending(func(string) bool { return true }))
	sent, left["a"] = nil, 3*piece
	assert.True(t, p.sendAll())
	assert.Equal(t, []string{"a4"}, sent)
	assert.EqualValues(t, 4*piece, p.Pending(func(peer string) bool { return peer == "a" }))
	sent = nil
	p.Add("a5")
	p.Drop(func(m string) bool { return m == "a5" })
	clear(left)
	assert.False(t, p.sendAll())
	assert.Empty(t, sent)
}
