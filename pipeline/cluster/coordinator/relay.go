package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// relay sends changes of the base to replicas. A change is the same bytes for all of them. The coordinator sends it to
// some members, the heads of chains, and each member of a chain relays it to the next. The coordinator tells each which
// change to expect, from whom, and its hash. A member that waits in vain requests it.
//
// The goroutine of the outer steps calls the methods, unless they say otherwise.
type relay struct {
	owner     *replicas.Owner
	note      func(step int, text string)
	present   func() []*slot
	neighbors neighbors
	requests  requests
	outgoing  *transport.Pacer[outgoing]
	faults    map[pair]*fault    // of members that were to relay changes to others
	copies    float64            // of a change of mean size that the coordinator sends itself, of those that members could relay
	first     int                // the place of the first recipient in the next chains; it rotates
	newest    map[int]*broadcast // by fragment
}

// fault excludes a pair of members from chains for some time.
type fault struct {
	count int
	until time.Time
}

// broadcast is a change on its way to all replicas.
type broadcast struct {
	step   int
	change replicas.Message
	hops   map[address]*hop // of the members that get it in pieces
}

// hop is how a member gets a change: from another, or the head of a chain from the coordinator.
type hop struct {
	from     string
	head     string // of the chain: the coordinator sends it the change
	place    int    // in the chain; 0: it is the head
	requests int    // in vain
	resent   bool   // the coordinator has sent the whole change
}

// outgoing is a piece of a change for the head of a chain.
type outgoing struct {
	address
	protocol.Piece
	bytes []byte
}

func newRelay(direct *Direct, owner *replicas.Owner, present func() []*slot, note func(step int, text string),
	wake chan struct{}) *relay {
	r := &relay{owner: owner, note: note, present: present, neighbors: newNeighbors(direct), requests: requests{wake: wake},
		faults: map[pair]*fault{}, copies: 1, newest: map[int]*broadcast{}}
	older := func(a, b outgoing) int { // of a change the copies are sent one after the other
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Fragment, b.Fragment))
	}
	size := func(o outgoing) int64 { return int64(len(o.bytes)) }
	r.outgoing = transport.NewPacer(older, func(o outgoing) string { return o.member }, size, r.unacknowledged,
		func(o outgoing) { o.pipeline.send(o.member, transport.Bulk, o.Piece, [][]byte{o.bytes}) })
	return r
}

const (
	// moreCopies is by how much more copies a link is tried with that has carried the ones before.
	moreCopies = 1.25
	// few is the part of a change that a link may have yet to carry then.
	few = 8
	// mostRequests is how often a member requests in vain besides those before it in its chain: its head may be slow.
	mostRequests = 3
	// A pair that has failed is excluded for minExclusion, and twice as long each time.
	minExclusion = time.Minute
	maxExclusion = time.Hour
)

// send sends a change to replicas. It returns how many copies of it.
func (r *relay) send(x replicas.Exchange, change replicas.Message, to []*slot) (copies int) {
	var all []recipient
	for _, s := range to {
		for _, member := range s.members() {
			payload := r.owner.Encode(change, x.Fragment, s.pipeline.owns(member))
			if payload == nil {
				continue
			}
			if !s.follows && r.neighbors.may(member) {
				all = append(all, recipientOf(address{s, member}, payload, all))
				continue
			}
			if s.follows { // it has not begun: the change counts as a variable
				s.pipeline.variables.count([]string{member})
			}
			copies++
			s.pipeline.send(member, transport.Bulk, protocol.Change{Step: x.Step, Fragment: x.Fragment, Before: s.follows}, payload)
		}
	}
	return copies + r.sendChains(x, change, all)
}

// sendChains sends a change to the heads of chains.
func (r *relay) sendChains(x replicas.Exchange, change replicas.Message, all []recipient) (copies int) {
	if len(all) == 0 {
		return 0
	}
	chains := chainsOf(all, r.first%len(all), r.adapt(all), r.reachable(all))
	r.first++
	now := &broadcast{step: x.Step, change: change, hops: map[address]*hop{}}
	r.newest[x.Fragment] = now
	next := func(chain []recipient, i int) string {
		if i+1 < len(chain) {
			return chain[i+1].member
		}
		return ""
	}
	for _, chain := range chains {
		from := identity.CoordinatorID
		for i, to := range chain {
			now.hops[to.address] = &hop{from: from, head: chain[0].member, place: i}
			h := protocol.Relay{Step: x.Step, Fragment: x.Fragment, From: from, Next: next(chain, i), Sizes: to.pieces.Sizes}
			to.pipeline.send(to.member, transport.Hot, h, to.pieces.Hashes)
			from = to.member
		}
		for i, piece := range chain[0].pieces.All {
			r.outgoing.Add(outgoing{chain[0].address, protocol.Piece{Step: x.Step, Fragment: x.Fragment, Number: i}, piece})
		}
	}
	return len(chains)
}

// adapt decides how many copies of a change the coordinator sends: the more, the less it has yet to send of those
// before. So a fast link serves all replicas, and a slow one as many as it can.
func (r *relay) adapt(all []recipient) (copies int) {
	mean := r.owner.MeanBytes()
	switch waiting := r.outgoing.Pending(func(string) bool { return true }); {
	case waiting < mean/few:
		r.copies = min(r.copies*moreCopies, float64(len(all)))
	case waiting > mean:
		r.copies = max(r.copies/2, 1)
	}
	copies = int(r.copies * float64(mean) / float64(max(all[0].size(), 1)))
	return min(max(copies, 1), len(all), cmp.Or(r.neighbors.direct.most, len(all)))
}

// unacknowledged is how many bytes of tensors are on their way, by member: the head of a chain need not have neighbors.
// Any goroutine may call it.
func (r *relay) unacknowledged() map[string]int64 {
	all := r.present()
	if len(all) == 0 {
		return nil
	}
	return transport.Unacknowledged(all[0].pipeline.group.node.Links(), func(string) bool { return true }) // all have the same node
}

// reachable returns a function that reports whether a member can relay something to another, as it has reported.
func (r *relay) reachable(all []recipient) func(from, to recipient) bool {
	connected := map[pair]bool{}
	for _, a := range all {
		for _, l := range a.pipeline.reports.of(a.member) {
			connected[pair{a.member, l.Peer}] = l.Connected
		}
	}
	now := time.Now()
	return func(from, to recipient) bool {
		p := pair{from.member, to.member}
		before := r.faults[p]
		return connected[p] && (before == nil || now.After(before.until)) && r.neighbors.are(from.address, to.address)
	}
}

// missing is a change that a member has not got.
type missing struct {
	address
	fragment int
}

// requests are of members for changes that are missing. Any goroutine may call the methods.
type requests struct {
	wake chan struct{} // has room for one

	mu  sync.Mutex
	all map[missing]protocol.Missing // that are not answered
}

// add takes a request.
func (r *requests) add(from address, h protocol.Missing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[missing]protocol.Missing{}
	}
	key := missing{from, h.Fragment}
	if before := r.all[key]; before.Step != h.Step || before.Why == protocol.Overdue { // the other reasons are given once
		r.all[key] = h
	}
	signal(r.wake)
}

// take returns the requests since it was last called.
func (r *requests) take() map[missing]protocol.Missing {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

// request takes a request of a member. An error means that it is malformed. Any goroutine may call it.
func (r *relay) request(s *slot, from string, h protocol.Missing) error {
	if h.Fragment < 0 || h.Fragment >= r.owner.Plan.Fragments ||
		!slices.Contains([]protocol.Reason{protocol.Gone, protocol.Overdue, protocol.Altered}, h.Why) {
		return fmt.Errorf("fragment %d is missing, %.20q", h.Fragment, h.Why)
	}
	r.requests.add(address{s, from}, h)
	return nil
}

// answer sends members the changes that they have requested.
func (r *relay) answer() {
	all := r.requests.take()
	if len(all) == 0 {
		return
	}
	present := r.present()
	for m, h := range all {
		now := r.newest[h.Fragment]
		if now == nil || now.step != h.Step || now.hops[m.address] == nil || !slices.Contains(present, m.slot) {
			continue
		}
		if x := now.hops[m.address]; !x.resent && !r.waits(x, h.Why) {
			r.resend(now, m.address, x, h)
		}
	}
}

// waits reports whether a member should go on waiting: those before it in its chain get the change first, and what the
// coordinator itself still sends is nobody's fault.
func (r *relay) waits(x *hop, why protocol.Reason) bool {
	if why != protocol.Overdue {
		return false
	}
	x.requests++
	return x.requests < x.place || x.requests < x.place+mostRequests && r.feeds(x)
}

// feeds reports whether the coordinator still sends to the head of a chain, and the head acknowledges.
func (r *relay) feeds(x *hop) bool {
	return r.outgoing.Pending(func(peer string) bool { return peer == x.head }) > 0
}

// resend sends a member a whole change, in place of the pieces that are missing.
func (r *relay) resend(now *broadcast, a address, x *hop, h protocol.Missing) {
	x.resent = true
	slow := h.Why == protocol.Overdue && r.feeds(x)
	r.outgoing.Drop(func(o outgoing) bool { return o.address == a && o.Step == h.Step && o.Fragment == h.Fragment })
	a.pipeline.send(a.member, transport.Bulk, protocol.Change{Step: h.Step, Fragment: h.Fragment},
		r.owner.Encode(now.change, h.Fragment, a.pipeline.owns(a.member)))
	if h.Why == protocol.Gone || slow || x.place == 0 {
		return
	}
	wait := r.exclude(pair{x.from, a.member})
	r.note(h.Step, fmt.Sprintf("%s: the change of %s after step %d from %s to %s is %s; the coordinator sends it, and what %[4]s would "+
		"relay to %[5]s in the next %[7]v", name(a.number), r.owner.Name(h.Fragment), h.Step, x.from, a.member, h.Why, wait))
}

// exclude excludes a pair of members from chains, for the time that it returns. It forgets faults that are long past.
func (r *relay) exclude(p pair) time.Duration {
	maps.DeleteFunc(r.faults, func(_ pair, x *fault) bool { return time.Since(x.until) > maxExclusion })
	x := r.faults[p]
	if x == nil {
		x = &fault{}
		r.faults[p] = x
	}
	wait := min(minExclusion<<min(x.count, 10), maxExclusion)
	x.count, x.until = x.count+1, time.Now().Add(wait)
	return wait
}
