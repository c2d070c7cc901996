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

// lacking is a node that keeps what its member lacks.
type lacking struct {
	links []transport.Link
	lacks []protocol.Header
}

func (*lacking) Connect(uint64, []transport.Peer) error { return nil }
func (*lacking) Neighbors([]transport.Neighbor) error   { return nil }
func (*lacking) Flush(context.Context) error            { return nil }
func (n *lacking) Links() []transport.Link              { return n.links }
func (n *lacking) Send(_ string, m transport.Message) error {
	h, err := protocol.Decode(m.Header)
	n.lacks = append(n.lacks, h)
	return err
}

// newLacking makes the neighbors of a member that has one, named near.
func newLacking(t *testing.T) (*lacking, *neighbors) {
	node := &lacking{}
	m := New(Options{ID: "a", Coordinator: "coordinator", Note: t.Logf})
	m.Use(node)
	c := traintest.Demo(t, t.TempDir(), "pipeline.replicas=2", "pipeline.local_steps=4", "pipeline.outer={late: 2, wire: int4}")
	w, err := m.open(t.Context(), protocol.Task{Config: string(c.YAML())})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.close()) })
	w.replica.Owns = func(string) bool { return true }
	n := newNeighbors(&epoch{member: m, course: replicas.NewCourse(*w.replica)})
	require.NoError(t, n.meet(protocol.EncodeNeighbors([]protocol.Neighbor{{Peer: protocol.Peer{ID: "near"}, Epoch: 3}})))
	return node, n
}

// What the coordinator sends before its promise is kept when neighbors change; what a neighbor has sent that is none any more is
// not.
func TestEarlyPiecesOfTheCoordinatorStay(t *testing.T) {
	_, n := newLacking(t)
	pieces := protocol.Cut([][]byte{make([]byte, 64), make([]byte, 64)})
	require.NoError(t, n.piece("near", protocol.Piece{Step: 4, Fragment: 1}, [][]byte{{1}}))
	require.NoError(t, n.piece("coordinator", protocol.Piece{Step: 4, Fragment: 0}, pieces.All))
	require.NoError(t, n.meet(protocol.EncodeNeighbors(nil)))
	assert.Len(t, n.early, 1)
	err := n.promise(protocol.Promise{Step: 4, From: "coordinator", Sizes: pieces.Sizes}, pieces.Hashes)
	assert.ErrorContains(t, err, "a change of ", "it is whole, and the replica awaits none")
}

// Nothing is kept of pieces that no change has.
func TestPiecesThatNoChangeHas(t *testing.T) {
	_, n := newLacking(t)
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

// A replica asks for what does not come, from the coordinator too. Nobody is at fault if there is no connection.
func TestOverdueChangesAreAskedFor(t *testing.T) {
	node, n := newLacking(t)
	for from, why := range map[string]protocol.Reason{"coordinator": protocol.Overdue, "near": protocol.Overdue, "gone": protocol.Gone} {
		node.lacks, node.links = nil, []transport.Link{{Peer: "near", Connected: true}}
		if from == "gone" {
			from, node.links[0].Connected = "near", false
		}
		pieces := protocol.Cut([][]byte{make([]byte, 4*64<<10)})
		require.NoError(t, n.promise(protocol.Promise{Step: 4, From: from, Sizes: pieces.Sizes}, pieces.Hashes))
		require.NoError(t, n.piece(from, protocol.Piece{Step: 4, Number: 2}, [][]byte{pieces.All[2]}))
		n.overdue(0)
		if why == protocol.Overdue {
			assert.Empty(t, node.lacks, "some has come")
			n.overdue(0)
		}
		assert.Equal(t, []protocol.Header{protocol.Lack{Step: 4, Why: why}}, node.lacks)
	}
}
