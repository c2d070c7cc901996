package coordinator

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// Direct says how members of different replicas reach each other.
type Direct struct {
	// Peer describes a member for others. false: it relays nothing, and gets everything from the coordinator.
	Peer      func(member string) (protocol.Peer, bool)
	NextEpoch func() uint64 // the number of a new epoch
	most      int           // copies of a change that the coordinator sends; 0: as many as its link carries
}

// neighbors are the links between members of different replicas.
type neighbors struct {
	direct *Direct            // nil: there are none
	epochs map[link]uint64    // of the links
	lists  map[address]string // the neighbors of each member, as they were sent to it
	recent recent
}

func newNeighbors(d *Direct) neighbors {
	return neighbors{direct: d, epochs: map[link]uint64{}, lists: map[address]string{}, recent: recent{without: map[string]time.Time{}}}
}

// address is a member of a replica.
type address struct {
	*slot
	member string
}

// members are the members of the replica.
func (s *slot) members() []string { return s.pipeline.group.members }

// link connects two members of different replicas, in the epochs of these. The lesser ID is first.
type link struct {
	from, to             string
	epochFrom, epochThen uint64
}

func linkOf(a, b address) link {
	if a.member > b.member {
		a, b = b, a
	}
	return link{a.member, b.member, a.pipeline.group.epoch, b.pipeline.group.epoch}
}

// reach is how many replicas on each side, in the order of their numbers, a replica has links with.
const reach = 4

// may reports whether a member can have neighbors.
func (n *neighbors) may(member string) bool {
	if n.direct == nil {
		return false
	}
	_, ok := n.direct.Peer(member)
	return ok
}

// are reports whether two members have a link.
func (n *neighbors) are(a, b address) bool { return n.epochs[linkOf(a, b)] != 0 }

// connect tells the members of replicas who their neighbors are.
func (n *neighbors) connect(slots []*slot) {
	if n.direct == nil {
		return
	}
	epochs, all := map[link]uint64{}, map[address][]protocol.Neighbor{}
	for i, s := range slots {
		for k := 1; k <= min(reach, len(slots)-1); k++ {
			other := slots[(i+k)%len(slots)]
			for m := range min(len(s.members()), len(other.members())) {
				n.pair(address{s, s.members()[m]}, address{other, other.members()[m]}, epochs, all)
			}
		}
	}
	n.recent.update(all, time.Now())
	none, lists := string(protocol.EncodeList[protocol.Neighbor](nil)[0]), map[address]string{}
	for _, s := range slots {
		for _, member := range s.members() {
			a := address{s, member}
			payload := protocol.EncodeList(all[a])
			if lists[a] = string(payload[0]); lists[a] != cmp.Or(n.lists[a], none) {
				s.pipeline.send(member, transport.Hot, protocol.Neighbors{}, payload)
			}
		}
	}
	n.epochs, n.lists = epochs, lists
}

// pair makes two members neighbors, if they can be. Their link stays if they are.
func (n *neighbors) pair(a, b address, epochs map[link]uint64, all map[address][]protocol.Neighbor) {
	key := linkOf(a, b)
	one, ok := n.direct.Peer(a.member)
	other, both := n.direct.Peer(b.member)
	if epochs[key] != 0 || !ok || !both {
		return
	}
	epoch := n.epochs[key]
	if epoch == 0 {
		epoch = n.direct.NextEpoch()
	}
	epochs[key] = epoch
	all[a] = append(all[a], protocol.Neighbor{Peer: other, Epoch: epoch})
	all[b] = append(all[b], protocol.Neighbor{Peer: one, Epoch: epoch})
}

// recent are the members that have neighbors, or had some a short time ago. Any goroutine may call the methods.
type recent struct {
	mu      sync.Mutex
	without map[string]time.Time // since when a member has no neighbors; zero: it has some
}

// recently is how long a member that has no neighbors anymore is remembered: reports of links with it may be under way.
const recently = 10 * time.Minute

// update takes the members that have neighbors from now on.
func (r *recent) update(all map[address][]protocol.Neighbor, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.without, func(_ string, since time.Time) bool { return !since.IsZero() && now.Sub(since) > recently })
	for member, since := range r.without {
		if since.IsZero() {
			r.without[member] = now
		}
	}
	for a := range all {
		r.without[a.member] = time.Time{}
	}
}

// has reports whether a member has, or lately had, neighbors.
func (r *recent) has(member string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.without[member]
	return ok
}
