package member

import (
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// neighbors are the members of other replicas that this one has links with. They pass pieces of changes of the base on to each
// other as the coordinator says. The coordinator itself sends a hash of each piece. What has not come, or is something else, the
// coordinator is asked for: a neighbor can delay a change, and nothing more.
type neighbors struct {
	epoch    *epoch
	outgoing *transport.Pacer[outgoing]

	mu       sync.Mutex
	epochs   map[string]uint64  // of the links, by member
	promised map[int]*promise   // by fragment: what is to come in pieces
	early    map[source]*pieces // what came before its promise
	taken    map[int]int        // by fragment: the step of the newest change
}

// promise is a change that comes in pieces.
type promise struct {
	protocol.Promise
	protocol.Pieces
	epoch   uint64 // of the link
	came    int64  // bytes of its pieces
	before  int64  // of these: when it was last looked at
	looked  int    // how often the replica has waited for it in vain
	altered bool   // something else has come
}

// source is a sender and a fragment.
type source struct {
	member   string
	fragment int
}

// pieces are of a change after a step.
type pieces struct {
	step  int
	bytes int64
	all   map[int][][]byte // payloads by number
}

// outgoing is a piece for a neighbor.
type outgoing struct {
	to string
	protocol.Piece
	payload [][]byte
}

func newNeighbors(e *epoch) *neighbors {
	n := &neighbors{epoch: e, epochs: map[string]uint64{}, promised: map[int]*promise{}, early: map[source]*pieces{}, taken: map[int]int{}}
	n.outgoing = transport.NewPacer(func(a, b outgoing) int { return a.Compare(b.Piece) }, func(o outgoing) string { return o.to },
		func(o outgoing) int64 { return int64(len(o.payload[0])) }, n.unacknowledged, n.send)
	return n
}

// send sends a piece. A neighbor that is gone needs nothing.
func (n *neighbors) send(o outgoing) {
	_ = n.epoch.member.node.Send(o.to, transport.Message{Class: transport.Bulk, Header: protocol.Encode(o.Piece), Payload: o.payload})
}

// unacknowledged is how many bytes are on their way to each neighbor.
func (n *neighbors) unacknowledged() map[string]int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return transport.Unacknowledged(n.epoch.member.node.Links(), func(peer string) bool { return n.epochs[peer] != 0 })
}

// meet takes the neighbors that the coordinator names.
func (n *neighbors) meet(payload [][]byte) error {
	all, err := protocol.DecodeNeighbors(payload)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.epochs)
	var peers []transport.Neighbor
	for _, x := range all {
		n.epochs[x.ID] = x.Epoch
		peers = append(peers, transport.Neighbor{Peer: transport.Peer{ID: x.ID, Addresses: x.Addresses}, Epoch: x.Epoch,
			Limit: max(1, n.epoch.course.MostBytes())})
	}
	for s := range n.early {
		if n.epochs[s.member] == 0 && s.member != n.epoch.member.options.Coordinator {
			delete(n.early, s)
		}
	}
	n.outgoing.Drop(func(o outgoing) bool { return n.epochs[o.to] == 0 })
	for _, p := range n.promised {
		if !n.ofCoordinator(p) && n.epochs[p.From] != p.epoch {
			n.lack(p, protocol.Gone)
		}
	}
	return n.epoch.member.node.Neighbors(peers)
}

// close ends the links. The node may be closed already.
func (n *neighbors) close() { _ = n.epoch.member.node.Neighbors(nil) }

// ofCoordinator reports whether the coordinator sends the pieces.
func (n *neighbors) ofCoordinator(p *promise) bool {
	return p.From == n.epoch.member.options.Coordinator
}

// promise takes the announcement of a change.
func (n *neighbors) promise(h protocol.Promise, payload [][]byte) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.Step <= n.taken[h.Fragment] {
		return nil
	}
	p := &promise{Promise: h, epoch: n.epochs[h.From]}
	if p.Pieces, err = h.Expect(payload); err != nil {
		return err
	}
	n.promised[h.Fragment] = p
	n.outgoing.Drop(func(o outgoing) bool { return o.Fragment == h.Fragment && o.Step < h.Step })
	s := source{h.From, h.Fragment}
	came := n.early[s]
	delete(n.early, s)
	if came != nil && came.step == h.Step {
		for number, payload := range came.all {
			if err := n.arrived(p, number, payload); err != nil {
				return err
			}
		}
	}
	if p.epoch == 0 && !n.ofCoordinator(p) {
		n.lack(p, protocol.Gone)
	}
	return nil
}

// change takes a change from the coordinator in one piece.
func (n *neighbors) change(h protocol.Change, payload [][]byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.promised[h.Fragment]; p != nil && p.Step == h.Step {
		for number, piece := range protocol.Cut(payload).All {
			if number < len(p.All) && p.All[number] == nil {
				n.pass(p, number, [][]byte{piece})
			}
		}
	}
	return n.take(h.Step, h.Fragment, payload)
}

// receive takes a message of a neighbor. What no promise fits is dropped. An error is not the neighbor's.
func (n *neighbors) receive(from string, m transport.Message) error {
	h, err := protocol.Decode(m.Header)
	x, ok := h.(protocol.Piece)
	n.mu.Lock()
	known := m.Epoch != 0 && n.epochs[from] == m.Epoch
	n.mu.Unlock()
	if err != nil || !ok || !known {
		return nil
	}
	return n.piece(from, x, m.Payload)
}

// piece takes a piece of a change, or keeps it until it is promised.
func (n *neighbors) piece(from string, h protocol.Piece, payload [][]byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.Step <= n.taken[h.Fragment] {
		return nil
	}
	if p := n.promised[h.Fragment]; p != nil && p.From == from && p.Step == h.Step {
		return n.arrived(p, h.Number, payload)
	}
	most := n.epoch.course.MessageBytes(h.Fragment) // what is held of a sender is a message of each fragment
	if most == 0 || !h.Fits(payload) {
		return nil
	}
	s := source{from, h.Fragment}
	if e := n.early[s]; e == nil || e.step != h.Step {
		n.early[s] = &pieces{step: h.Step, all: map[int][][]byte{}}
	}
	e := n.early[s]
	if e.bytes += int64(len(payload[0])); e.bytes <= most {
		e.all[h.Number] = payload
	}
	return nil
}

// arrived takes a piece, if it is what was promised, passes it on, and takes the change when all are there. The caller holds the
// lock.
func (n *neighbors) arrived(p *promise, number int, payload [][]byte) error {
	added, err := p.Add(number, payload)
	if err != nil && !p.altered {
		p.altered = true
		n.lack(p, protocol.Altered)
	}
	if !added {
		return nil
	}
	p.came += int64(len(payload[0]))
	n.pass(p, number, payload)
	if !p.Complete() {
		return nil
	}
	whole, err := p.Payload()
	if err != nil {
		return err
	}
	return n.take(p.Step, p.Fragment, whole)
}

// pass passes a piece on. The caller holds the lock.
func (n *neighbors) pass(p *promise, number int, payload [][]byte) {
	if n.epochs[p.Next] != 0 {
		n.outgoing.Add(outgoing{p.Next, protocol.Piece{Step: p.Step, Fragment: p.Fragment, Number: number}, payload})
	}
}

// take takes a change, once: a neighbor and the coordinator may have sent it. The caller holds the lock.
func (n *neighbors) take(step, fragment int, payload [][]byte) error {
	if step <= n.taken[fragment] {
		return nil
	}
	if err := n.epoch.course.Take(fragment, step, payload); err != nil {
		return err
	}
	n.taken[fragment] = step
	delete(n.promised, fragment)
	return nil
}

const (
	// steady is the share of a change that has to come in Options.Patience.
	steady = 1. / 16
	// mostLooks bounds how long it may come.
	mostLooks = 3
)

// overdue asks for a change for which the replica waits, unless it is coming.
func (n *neighbors) overdue(fragment int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.promised[fragment]
	if p == nil {
		return
	}
	came := p.came - p.before
	p.before = p.came
	p.looked++
	if n.broken(p) {
		n.lack(p, protocol.Gone)
	} else if float64(came) < steady*float64(n.epoch.course.MessageBytes(fragment)) || p.looked > mostLooks {
		n.lack(p, protocol.Overdue)
	}
}

// broken reports whether there is no connection with the neighbor that is to pass a change on.
func (n *neighbors) broken(p *promise) bool {
	return !n.ofCoordinator(p) && slices.ContainsFunc(n.epoch.member.node.Links(), func(l transport.Link) bool {
		return l.Peer == p.From && !l.Connected
	})
}

// lack asks the coordinator for a change.
func (n *neighbors) lack(p *promise, why protocol.Reason) {
	n.epoch.send(n.epoch.member.options.Coordinator, transport.Hot, protocol.Lack{Step: p.Step, Fragment: p.Fragment, Why: why}, nil)
}
