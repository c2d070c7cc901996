package member

import (
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// neighbors are the members of other replicas that this one has links with. They relay pieces of changes of the base
// to each other as the coordinator says, which itself announces each change with a hash of each piece. The member
// requests what has not come, or is something else, from the coordinator: a neighbor can delay a change, no more.
type neighbors struct {
	epoch    *epoch
	outgoing *transport.Pacer[outgoing]

	mu        sync.Mutex
	epochs    map[string]uint64  // of the links, by member
	announced map[int]*announced // by fragment: the change that comes in pieces
	early     map[source]*pieces // what came before its announcement
	taken     map[int]int        // by fragment: the step of the newest change
}

// announced is a change that comes in pieces.
type announced struct {
	protocol.Relay
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
	n := &neighbors{epoch: e, epochs: map[string]uint64{}, announced: map[int]*announced{}, early: map[source]*pieces{},
		taken: map[int]int{}}
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

// connect takes the neighbors that the coordinator names.
func (n *neighbors) connect(payload [][]byte) error {
	all, err := protocol.DecodeList[protocol.Neighbor]("a list of neighbors", payload)
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
			Limit: max(1, n.epoch.replica.course.MostBytes())})
	}
	for s := range n.early {
		if n.epochs[s.member] == 0 && s.member != n.epoch.member.options.Coordinator {
			delete(n.early, s)
		}
	}
	n.outgoing.Drop(func(o outgoing) bool { return n.epochs[o.to] == 0 })
	for _, p := range n.announced {
		if !n.ofCoordinator(p) && n.epochs[p.From] != p.epoch {
			n.request(p, protocol.Gone)
		}
	}
	return n.epoch.member.node.Neighbors(peers)
}

// close ends the links. The node may be closed already.
func (n *neighbors) close() { _ = n.epoch.member.node.Neighbors(nil) }

// ofCoordinator reports whether the coordinator sends the pieces.
func (n *neighbors) ofCoordinator(p *announced) bool {
	return p.From == n.epoch.member.options.Coordinator
}

// announce takes the announcement of a change.
func (n *neighbors) announce(h protocol.Relay, payload [][]byte) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.Step <= n.taken[h.Fragment] {
		return nil
	}
	p := &announced{Relay: h, epoch: n.epochs[h.From]}
	if p.Pieces, err = h.Expect(payload); err != nil {
		return err
	}
	n.announced[h.Fragment] = p
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
		n.request(p, protocol.Gone)
	}
	return nil
}

// change takes a change from the coordinator in one piece.
func (n *neighbors) change(h protocol.Change, payload [][]byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.announced[h.Fragment]; p != nil && p.Step == h.Step {
		for number, piece := range protocol.Cut(payload).All {
			if number < len(p.All) && p.All[number] == nil {
				n.relay(p, number, [][]byte{piece})
			}
		}
	}
	return n.take(h.Step, h.Fragment, payload)
}

// receive takes a message of a neighbor. What was not announced is dropped. An error is not the neighbor's.
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

// piece takes a piece of a change, or keeps it until it is announced.
func (n *neighbors) piece(from string, h protocol.Piece, payload [][]byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.Step <= n.taken[h.Fragment] {
		return nil
	}
	if p := n.announced[h.Fragment]; p != nil && p.From == from && p.Step == h.Step {
		return n.arrived(p, h.Number, payload)
	}
	most := n.epoch.replica.course.MessageBytes(h.Fragment) // a message of each fragment is held for a sender
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

// arrived takes a piece that was announced, relays it, and takes a change that is complete. The caller holds the
// lock.
func (n *neighbors) arrived(p *announced, number int, payload [][]byte) error {
	added, err := p.Add(number, payload)
	if err != nil && !p.altered {
		p.altered = true
		n.request(p, protocol.Altered)
	}
	if !added {
		return nil
	}
	p.came += int64(len(payload[0]))
	n.relay(p, number, payload)
	if !p.Complete() {
		return nil
	}
	whole, err := p.Payload()
	if err != nil {
		return err
	}
	return n.take(p.Step, p.Fragment, whole)
}

// relay relays a piece. The caller holds the lock.
func (n *neighbors) relay(p *announced, number int, payload [][]byte) {
	if n.epochs[p.Next] != 0 {
		n.outgoing.Add(outgoing{p.Next, protocol.Piece{Step: p.Step, Fragment: p.Fragment, Number: number}, payload})
	}
}

// take takes a change, once: a neighbor and the coordinator may have sent it. The caller holds the lock.
func (n *neighbors) take(step, fragment int, payload [][]byte) error {
	if step <= n.taken[fragment] {
		return nil
	}
	if err := n.epoch.replica.course.Take(fragment, step, payload); err != nil {
		return err
	}
	n.taken[fragment] = step
	delete(n.announced, fragment)
	return nil
}

const (
	// steady is the share of a change that has to come in Options.ChangeTimeout.
	steady = 1. / 16
	// mostLooks bounds how long it may come.
	mostLooks = 3
)

// overdue requests a change for which the replica waits, unless it is coming.
func (n *neighbors) overdue(fragment int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.announced[fragment]
	if p == nil {
		return
	}
	came := p.came - p.before
	p.before = p.came
	p.looked++
	if n.broken(p) {
		n.request(p, protocol.Gone)
	} else if float64(came) < steady*float64(n.epoch.replica.course.MessageBytes(fragment)) || p.looked > mostLooks {
		n.request(p, protocol.Overdue)
	}
}

// broken reports whether there is no connection with the neighbor that is to relay a change.
func (n *neighbors) broken(p *announced) bool {
	return !n.ofCoordinator(p) && slices.ContainsFunc(n.epoch.member.node.Links(), func(l transport.Link) bool {
		return l.Peer == p.From && !l.Connected
	})
}

// request requests a change from the coordinator.
func (n *neighbors) request(p *announced, why protocol.Reason) {
	n.epoch.send(n.epoch.member.options.Coordinator, transport.Hot, protocol.Missing{Step: p.Step, Fragment: p.Fragment, Why: why}, nil)
}
