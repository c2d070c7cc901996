package coordinator

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// A change of the base is the same bytes for all replicas. The coordinator sends it to some of them, and these pass it on, in
// chains of members that reach each other. It tells each member of a chain what to expect, from whom, and its hash. A member
// that waits in vain asks for the change, and gets it from the coordinator.

// Direct says how members of different replicas reach each other.
type Direct struct {
	// Peer describes a member for others. false: it passes nothing on, and gets everything from the coordinator.
	Peer      func(member string) (protocol.Peer, bool)
	NextEpoch func() uint64 // the number of a new epoch
	most      int           // copies of a change that the coordinator sends; 0: as many as its link carries
}

// spread is how changes of the base reach replicas. The goroutine of the outer steps has it.
type spread struct {
	pairs  map[acquaintance]uint64 // the epochs of links between replicas
	given  map[address]string      // the neighbors that each member knows, as it was told
	faults map[pair]*fault         // of members that were to pass changes on to others
	copies float64                 // of a change of mean size that the coordinator sends itself, of those that members could pass on
	turn   int                     // the place of the first in the next chains
	newest map[int]*spreading      // by fragment
}

func newSpread() spread {
	return spread{pairs: map[acquaintance]uint64{},
		given: map[address]string{}, faults: map[pair]*fault{}, copies: 1, newest: map[int]*spreading{}}
}

// address is a member of a replica.
type address struct {
	*slot
	member string
}

// acquaintance is two members of different replicas, in the epochs of these. The lesser ID is first.
type acquaintance struct {
	from, to             string
	epochFrom, epochThen uint64
}

func acquaintanceOf(a, b address) acquaintance {
	if a.member > b.member {
		a, b = b, a
	}
	return acquaintance{a.member, b.member, a.pipeline.group.epoch, b.pipeline.group.epoch}
}

// fault is why a member passes nothing on to another for some time.
type fault struct {
	count int
	until time.Time
}

// spreading is a change on its way to all replicas.
type spreading struct {
	step   int
	change replicas.Message
	hops   map[address]*hop // of those that get it in pieces
}

// hop is how a member gets a change: from another, or the head of a chain from the coordinator.
type hop struct {
	from     string
	head     string // of the chain: the coordinator sends it the change
	place    int    // in the chain; 0: it is the head
	asked    int    // how often the member has asked in vain
	answered bool
}

// outgoing is a piece of a change for the first member of a chain.
type outgoing struct {
	address
	protocol.Piece
	bytes []byte
}

// newOutgoing makes what sends pieces. Of a change the copies are sent one after the other.
func (r *Replicas) newOutgoing() *transport.Pacer[outgoing] {
	older := func(a, b outgoing) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Fragment, b.Fragment))
	}
	return transport.NewPacer(older, func(o outgoing) string { return o.member }, func(o outgoing) int64 { return int64(len(o.bytes)) },
		r.unacknowledged, func(o outgoing) { o.pipeline.send(o.member, transport.Bulk, o.Piece, [][]byte{o.bytes}) })
}

// recipient is a member and what it gets of a change.
type recipient struct {
	address
	payload [][]byte
	pieces  protocol.Pieces
}

// size is the number of bytes of what the member gets.
func (r recipient) size() (bytes int64) {
	for _, tensor := range r.payload {
		bytes += int64(len(tensor))
	}
	return bytes
}

const (
	// reach is how many replicas on each side, in the order of their numbers, a replica has links with.
	reach = 4
	// moreCopies is by how much more copies a link is tried with that has carried the ones before.
	moreCopies = 1.25
	// few is the part of a change that a link may have yet to carry then.
	few = 8
	// mostAsked is how often a member asks in vain besides those before it in its chain: the first of it may be slow.
	mostAsked = 3
	// A pair that has failed is left out for leastShunned, and twice as long each time.
	leastShunned = time.Minute
	mostShunned  = time.Hour
)

// meet tells members who their neighbors are.
func (r *Replicas) meet() {
	d := r.options.Direct
	if d == nil {
		return
	}
	slots, pairs, lists := r.present(), map[acquaintance]uint64{}, map[address][]protocol.Neighbor{}
	for i, s := range slots {
		for k := 1; k <= min(reach, len(slots)-1); k++ {
			other := slots[(i+k)%len(slots)]
			for m := range min(len(s.members()), len(other.members())) {
				r.acquaint(address{s, s.members()[m]}, address{other, other.members()[m]}, pairs, lists)
			}
		}
	}
	r.mu.Lock()
	for a := range lists {
		r.met[a.member] = true
	}
	r.mu.Unlock()
	none, given := string(protocol.EncodeNeighbors(nil)[0]), map[address]string{}
	for _, s := range slots {
		for _, member := range s.members() {
			a := address{s, member}
			payload := protocol.EncodeNeighbors(lists[a])
			if given[a] = string(payload[0]); given[a] != cmp.Or(r.spread.given[a], none) {
				s.pipeline.send(member, transport.Hot, protocol.Neighbors{}, payload)
			}
		}
	}
	r.spread.pairs, r.spread.given = pairs, given
}

// acquaint makes two members neighbors, if they may be. Their link stays if they are.
func (r *Replicas) acquaint(a, b address, pairs map[acquaintance]uint64, lists map[address][]protocol.Neighbor) {
	key := acquaintanceOf(a, b)
	one, ok := r.options.Direct.Peer(a.member)
	other, both := r.options.Direct.Peer(b.member)
	if pairs[key] != 0 || !ok || !both {
		return
	}
	epoch := r.spread.pairs[key]
	if epoch == 0 {
		epoch = r.options.Direct.NextEpoch()
	}
	pairs[key] = epoch
	lists[a] = append(lists[a], protocol.Neighbor{Peer: other, Epoch: epoch})
	lists[b] = append(lists[b], protocol.Neighbor{Peer: one, Epoch: epoch})
}

// members are the members of the replica.
func (s *slot) members() []string { return s.pipeline.group.members }

// send sends a change to replicas. It returns how many copies of it.
func (r *Replicas) send(x replicas.Exchange, change replicas.Message, to []*slot) (copies int) {
	var all []recipient
	for _, s := range to {
		for _, member := range s.members() {
			payload := r.owner.Encode(change, x.Fragment, s.pipeline.owns(member))
			if payload == nil {
				continue
			}
			known := false
			if r.options.Direct != nil && !s.follows {
				_, known = r.options.Direct.Peer(member)
			}
			if known {
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

// sendChains sends a change to the first members of chains.
func (r *Replicas) sendChains(x replicas.Exchange, change replicas.Message, all []recipient) (copies int) {
	if len(all) == 0 {
		return 0
	}
	chains := chainsOf(all, r.spread.turn%len(all), r.adapt(all), r.reachable(all))
	r.spread.turn++
	now := &spreading{step: x.Step, change: change, hops: map[address]*hop{}}
	r.spread.newest[x.Fragment] = now
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
			h := protocol.Promise{Step: x.Step, Fragment: x.Fragment, From: from, Next: next(chain, i), Sizes: to.pieces.Sizes}
			to.pipeline.send(to.member, transport.Hot, h, to.pieces.Hashes)
			from = to.member
		}
		for i, piece := range chain[0].pieces.All {
			r.outgoing.Add(outgoing{chain[0].address, protocol.Piece{Step: x.Step, Fragment: x.Fragment, Number: i}, piece})
		}
	}
	return len(chains)
}

// recipientOf is a member that gets a change. Equal changes of other recipients are cut once.
func recipientOf(a address, payload [][]byte, others []recipient) recipient {
	for _, x := range slices.Backward(others) {
		if slices.EqualFunc(x.payload, payload, bytes.Equal) {
			return recipient{a, x.payload, x.pieces}
		}
	}
	return recipient{a, payload, protocol.Cut(payload)}
}

// equals reports whether another member gets the same.
func (r recipient) equals(other recipient) bool {
	return slices.Equal(r.pieces.Sizes, other.pieces.Sizes) && slices.EqualFunc(r.pieces.Hashes, other.pieces.Hashes, bytes.Equal)
}

// adapt decides how many copies of a change the coordinator sends: the more, the less it has yet to send of those before. So a
// fast link serves all replicas, and a slow one as many as it can.
func (r *Replicas) adapt(all []recipient) (copies int) {
	s, mean := &r.spread, r.owner.MeanBytes()
	switch waiting := r.outgoing.Pending(func(string) bool { return true }); {
	case waiting < mean/few:
		s.copies = min(s.copies*moreCopies, float64(len(all)))
	case waiting > mean:
		s.copies = max(s.copies/2, 1)
	}
	copies = int(s.copies * float64(mean) / float64(max(all[0].size(), 1)))
	return min(max(copies, 1), len(all), cmp.Or(r.options.Direct.most, len(all)))
}

// unacknowledged is how many bytes of tensors are on their way from the coordinator, by member with neighbors.
func (r *Replicas) unacknowledged() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.slots {
		if s != nil { // all pipelines have the same node
			return transport.Unacknowledged(s.pipeline.group.node.Links(), func(peer string) bool { return r.met[peer] })
		}
	}
	return nil
}

// reachable returns a function that reports whether a member can pass something on to another, as it has reported.
func (r *Replicas) reachable(all []recipient) func(from, to recipient) bool {
	connected := map[pair]bool{}
	for _, a := range all {
		for _, l := range a.pipeline.reports.of(a.member) {
			connected[pair{a.member, l.Peer}] = l.Connected
		}
	}
	now := time.Now()
	return func(from, to recipient) bool {
		p := pair{from.member, to.member}
		f := r.spread.faults[p]
		return connected[p] && (f == nil || now.After(f.until)) && r.spread.neighbors(from.address, to.address)
	}
}

// neighbors reports whether two members have a link.
func (s *spread) neighbors(a, b address) bool {
	return s.pairs[acquaintanceOf(a, b)] != 0
}

// chainsOf divides members into some chains, or more where members do not reach each other. All members of a chain get the
// same bytes.
func chainsOf(all []recipient, first, chains int, reaches func(from, to recipient) bool) (out [][]recipient) {
	left := slices.Concat(all[first:], all[:first])
	longest := (len(all) + chains - 1) / chains
	for len(left) > 0 {
		chain := left[:1:1]
		left = left[1:]
		for len(chain) < longest {
			last := chain[len(chain)-1]
			i := slices.IndexFunc(left, func(to recipient) bool { return last.equals(to) && reaches(last, to) })
			if i < 0 {
				break
			}
			chain = append(chain, left[i])
			left = slices.Delete(slices.Clone(left), i, i+1)
		}
		out = append(out, chain)
	}
	return out
}

// lack is what a member lacks of a fragment.
type lack struct {
	address
	fragment int
}

// lacked takes that a member lacks a change. An error means that the message is malformed.
func (r *Replicas) lacked(s *slot, from string, h protocol.Lack) error {
	if h.Fragment < 0 || h.Fragment >= r.owner.Plan.Fragments ||
		!slices.Contains([]protocol.Reason{protocol.Gone, protocol.Overdue, protocol.Altered}, h.Why) {
		return fmt.Errorf("it lacks fragment %d, %.20q", h.Fragment, h.Why)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := lack{address{s, from}, h.Fragment}
	if before := r.lacks[key]; before.Step != h.Step || before.Why == protocol.Overdue { // the other reasons are given once
		r.lacks[key] = h
	}
	signal(r.wake)
	return nil
}

// answer sends members the changes that they lack.
func (r *Replicas) answer() {
	r.mu.Lock()
	all := r.lacks
	r.lacks = map[lack]protocol.Lack{}
	for l := range all {
		if r.slots[l.number] != l.slot {
			delete(all, l)
		}
	}
	r.mu.Unlock()
	for l, h := range all {
		now := r.spread.newest[h.Fragment]
		if now == nil || now.step != h.Step || now.hops[l.address] == nil {
			continue
		}
		if x := now.hops[l.address]; !x.answered && !r.patient(x, h.Why) {
			r.resend(now, l.address, x, h)
		}
	}
}

// patient reports whether a member that waits should go on waiting: those before it in its chain are asked for first, and what
// the coordinator itself still sends is nobody's fault.
func (r *Replicas) patient(x *hop, why protocol.Reason) bool {
	if why != protocol.Overdue {
		return false
	}
	x.asked++
	return x.asked < x.place || x.asked < x.place+mostAsked && r.feeds(x)
}

// feeds reports whether the coordinator still sends to the head of a chain, and the head acknowledges.
func (r *Replicas) feeds(x *hop) bool {
	return r.outgoing.Pending(func(peer string) bool { return peer == x.head }) > 0
}

// resend sends a member a whole change, in place of the pieces that it lacks.
func (r *Replicas) resend(now *spreading, a address, x *hop, h protocol.Lack) {
	x.answered = true
	slow := h.Why == protocol.Overdue && r.feeds(x)
	r.outgoing.Drop(func(o outgoing) bool { return o.address == a && o.Step == h.Step && o.Fragment == h.Fragment })
	a.pipeline.send(a.member, transport.Bulk, protocol.Change{Step: h.Step, Fragment: h.Fragment},
		r.owner.Encode(now.change, h.Fragment, a.pipeline.owns(a.member)))
	if h.Why == protocol.Gone || slow || x.place == 0 {
		return
	}
	f := cmp.Or(r.spread.faults[pair{x.from, a.member}], &fault{})
	wait := min(leastShunned<<min(f.count, 10), mostShunned)
	f.count, f.until = f.count+1, time.Now().Add(wait)
	r.spread.faults[pair{x.from, a.member}] = f
	r.note(h.Step, fmt.Sprintf("%s: the change of %s after step %d from %s to %s is %s; the coordinator sends it, and what %[4]s would "+
		"pass on to %[5]s in the next %[7]v", name(a.number), r.owner.Name(h.Fragment), h.Step, x.from, a.member, h.Why, wait))
}
