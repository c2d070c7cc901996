package transport

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Nodes in different epochs have links as neighbors: one of them is dialed, or only dials. The end of such a link is no loss.
func TestNeighbors(t *testing.T) {
	for _, addresses := range []bool{true, false} { // of a
		ca := newAuthority(t, "run")
		address := "127.0.0.1:0"
		if !addresses {
			address = ""
		}
		a, b := start(t, ca, "a", address), start(t, ca, "b", "127.0.0.1:0")
		require.NoError(t, a.Connect(1, nil))
		require.NoError(t, b.Connect(3, nil))
		ofA, ofB := Neighbor{Peer{ID: "a"}, 5}, Neighbor{Peer{ID: "b", Addresses: []string{b.address()}}, 5}
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
		ofA.Epoch, ofB.Epoch = 7, 7
		require.NoError(t, a.Neighbors([]Neighbor{ofB}), "another link")
		require.NoError(t, b.Neighbors([]Neighbor{ofA}))
		require.NoError(t, a.Send("b", Message{Class: Bulk, Payload: [][]byte{{4}}}))
		assert.Equal(t, uint64(7), b.awaitMessages(3)[2].Epoch)
		require.NoError(t, a.Connect(9, nil))
		assert.Error(t, a.Send("b", Message{}), "its epoch has ended")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		assert.Empty(t, slices.Concat(a.lost, b.lost))
	}
}

// A Pacer sends the first of its order first, and no more than a few at once.
func TestPacer(t *testing.T) {
	var sent []int
	underWay := int64(1000)
	p := NewPacer(func(a, b int) int { return a/10 - b/10 }, func(int) int64 { return 10 }, func() int64 { return underWay },
		func(m int) {
			sent = append(sent, m)
			underWay += 20
		})
	for _, m := range []int{21, 10, 22, 30, 11} {
		p.Add(m)
	}
	assert.EqualValues(t, 20, p.Waiting(func(m int) bool { return m < 20 }))
	assert.True(t, p.sendNext())
	assert.Empty(t, sent)
	underWay = 0
	assert.True(t, p.sendNext())
	assert.Equal(t, []int{10, 11, 21}, sent)
	underWay = 0
	assert.False(t, p.sendNext())
	assert.Equal(t, []int{10, 11, 21, 22, 30}, sent)
}
