package transport

import (
	"context"
	"net"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
)

// Neighbor is a peer that is not in the node's epoch.
type Neighbor struct {
	Peer
	Epoch uint64 // of these two alone, greater than any epoch before it
	// Limit is the most bytes of the payload of a message that the neighbor sends. It is of class Bulk: others have no
	// payload. 0: Options.MaxMessage, of any class.
	Limit int64
}

const (
	yieldFor        = 3 * time.Second  // how long the neighbor with the lesser ID leaves dialing to the other
	neighborLook    = time.Second      // between two looks at whether a neighbor has dialed
	neighborBackOff = 30 * time.Second // the longest time between two attempts to dial a neighbor
)

// Neighbors sets the peers with which the node has links besides its epoch's. A link goes on while its neighbor and
// their epoch stay the same, and ends with the node's own epoch. Either side may dial, whichever reaches the other;
// neighbors that do not reach each other stay without a connection, and a link that fails is no loss.
func (n *Node) Neighbors(all []Neighbor) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	links, begun := map[string]*link{}, []*link{}
	for _, p := range all {
		l := n.neighbors[p.ID]
		if l == nil || l.epoch != p.Epoch {
			l = newLink(n, p.Peer, p.Epoch, len(p.Addresses) > 0)
			l.neighbor = true
			if p.Limit > 0 {
				l.in[Urgent], l.in[Hot], l.in[Bulk] = newInbox(Urgent, 0), newInbox(Hot, 0), newInbox(Bulk, p.Limit)
			}
			begun = append(begun, l)
		}
		links[p.ID] = l
	}
	n.endNeighbors(links)
	n.neighbors = links
	for _, l := range begun {
		l.start()
	}
	return nil
}

// endNeighbors ends the links with neighbors that are not among some others. The caller holds the lock.
func (n *Node) endNeighbors(but map[string]*link) {
	for id, l := range n.neighbors {
		if but[id] != l {
			l.end(refusalf(codeOver, "epoch %d of two neighbors has ended", l.epoch))
		}
	}
}

// awaitDial waits until this side should dial a neighbor: while there is no connection and, with the lesser ID, after
// the other side has had time to dial. It returns false if ctx ends before.
func (l *link) awaitDial(ctx context.Context) bool {
	wait := time.Duration(0)
	if l.node.listener != nil && l.node.options.Self < l.peer.ID {
		wait = yieldFor
	}
	for sleep.For(wait, ctx.Done()) {
		if !l.connected() {
			return true
		}
		for l.connected() {
			if !sleep.For(neighborLook, ctx.Done()) {
				return false
			}
		}
	}
	return false
}

// connected reports whether there is a connection.
func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.connection != nil
}
