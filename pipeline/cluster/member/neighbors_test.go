package member

import (
	"context"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requested is a node that keeps the changes that its member requests.
type requested struct {
	links    []transport.Link
	requests []protocol.Header
}

func (*requested) Connect(uint64, []transport.Peer) error { return nil }
func (*requested) Neighbors([]transport.Neighbor) error   { return nil }
func (*requested) Flush(context.Context, string) error    { return nil }
func (n *requested) Links() []transport.Link              { return n.links }
func (n *requested) Send(_ string, m transport.Message) error {
	h, err := protocol.Decode(m.Header)
	n.requests = append(n.requests, h)
	return err
}

// newRequested makes the neighbors of a member that has one, named near.
func newRequested(t *testing.T) (*requested, *neighbors) {
	node := &requested{}
	m := New(Options{ID: "a", Coordinator: "coordinator", Note: t.Logf})
	m.Use(node)
	c := traintest.Demo(t, t.TempDir(), "pipeline.replicas=2", "pipeline.local_steps=4", "pipeline.outer={late: 2, wire: int4}")
	w, err := m.open(t.Context(), protocol.Task{Config: string(c.YAML())})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.close()) })
	w.replica.Owns = func(string) bool { return true }
	n := newNeighbors(&epoch{member: m, replica: &replica{course: replicas.NewCourse(*w.replica)}})
	require.NoError(t, n.connect(protocol.EncodeList([]protocol.Neighbor{{Peer: protocol.Peer{ID: "near"}, Epoch: 3}})))
	return node, n
}

// What the coordinator sends before its announcement is kept when neighbors change; what a neighbor has sent that is
// none any more is not.
func TestEarlyPiecesOfTheCoordinatorStay(t *testing.T) {
	_, n := newRequested(t)
	pieces := protocol.Cut([][]byte{make([]byte, 64), make([]byte, 64)})
	require.NoError(t, n.piece("near", protocol.Piece{Step: 4, Fragment: 1}, [][]byte{{1}}))
	require.NoError(t, n.piece("coordinator", protocol.Piece{Step: 4, Fragment: 0}, pieces.All))
	require.NoError(t, n.connect(protocol.EncodeList[protocol.Neighbor](nil)))
	assert.Len(t, n.early, 1)
	err := n.announce(protocol.Relay{Step: 4, From: "coordinator", Sizes: pieces.Sizes}, pieces.Hashes)
	assert.ErrorContains(t, err, "a change of ", "it is whole, and the replica awaits none")
}

// Nothing is kept of pieces that no change has.
func TestPiecesThatNoChangeHas(t *testing.T) {
	_, n := newRequested(t)
	for h, payload := range map[protocol.Piece][][]byte{
		{Step: 4, Fragment: -1}:          {{1}},
		{Step: 4, Fragment: math.MaxInt}: {{1}},
		{Step: 4, Number: -1}:            {{1}},
		{Step: 4, Number: math.MaxInt}:   {{1}},
		{Step: 4}:                        nil,
		{Step: 5}:                        {{}},
		{Step: 6}:                        {{1}, {1}},
	} {
		require.NoError(t, n.piece("near", h, payload))
		assert.Empty(t, n.early, "%+v", h)
	}
}

// A replica requests what does not come, from the coordinator too. Nobody is at fault if there is no connection.
func TestOverdueChangesAreRequested(t *testing.T) {
	node, n := newRequested(t)
	for from, why := range map[string]protocol.Reason{"coordinator": protocol.Overdue, "near": protocol.Overdue, "gone": protocol.Gone} {
		node.requests, node.links = nil, []transport.Link{{Peer: "near", Connected: true}}
		if from == "gone" {
			from, node.links[0].Connected = "near", false
		}
		pieces := protocol.Cut([][]byte{make([]byte, 4*64<<10)})
		require.NoError(t, n.announce(protocol.Relay{Step: 4, From: from, Sizes: pieces.Sizes}, pieces.Hashes))
		require.NoError(t, n.piece(from, protocol.Piece{Step: 4, Number: 2}, [][]byte{pieces.All[2]}))
		n.overdue(0)
		if why == protocol.Overdue {
			assert.Empty(t, node.requests, "some has come")
			n.overdue(0)
		}
		assert.Equal(t, []protocol.Header{protocol.Missing{Step: 4, Why: why}}, node.requests)
	}
}
