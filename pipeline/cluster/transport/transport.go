package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

// Class separates messages that must not wait for each other.
type Class uint8

const (
	Hot    Class = iota // activations, gradients, gradient norms
	Bulk                // exchanges of parameters, checkpoints, data
	Urgent              // requests and replies of a session
	classes
)

func (c Class) String() string {
	return [...]string{"hot", "bulk", "urgent", "?"}[min(c, classes)]
}

// MaxUrgent is the most bytes of the payload of a message of class Urgent.
const MaxUrgent = 32 << 20

// Message is what one member sends another.
type Message struct {
	Class   Class
	Header  []byte   // opaque, at most 4 KiB
	Payload [][]byte // at most 4096 tensors, in all at most Options.MaxMessage bytes
	Epoch   uint64   // set by the nodes: the epoch that the message belongs to; 0: of class Urgent in a session
}

// size is the length of the payload in bytes.
func (m Message) size() int64 {
	n := int64(0)
	for _, tensor := range m.Payload {
		n += int64(len(tensor))
	}
	return n
}

// footprint is the memory that a message takes, about.
func (m Message) footprint() int64 {
	return m.size() + int64(len(m.Header)) + 64*int64(1+len(m.Payload))
}

// Peer is another member.
type Peer struct {
	ID        string
	Addresses []string // host:port, tried in order; a peer without any dials us
}

// Node is the end of the transport in one process.
type Node struct {
	options   Options
	notes     notes
	listener  *guardedListener // nil if the node only dials
	server    *grpc.Server
	work      sync.WaitGroup
	admitting sync.Mutex // sessions begin one after the other
	uplink    uplink

	mu          sync.Mutex
	closed      bool
	epoch       uint64
	links       map[string]*link             // of the epoch; the link of a peer that has a session is the session's
	neighbors   map[string]*link             // see Neighbors
	sessions    map[string]*Session          // by peer
	hellos      map[string]*rate.Limiter     // of sessions, by peer
	connections map[*watchedConn]*connection // that peers have dialed
}

// Listen starts a node. It accepts connections at a TCP address; port 0 lets the system choose one. With an empty
// address it accepts the connections of Network.Listener, or none, as in a browser tab.
func Listen(address string, o Options) (*Node, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{options: o, uplink: newUplink(o.Uplink), notes: notes{note: o.Note}, links: map[string]*link{},
		sessions: map[string]*Session{}, hellos: map[string]*rate.Limiter{}, connections: map[*watchedConn]*connection{}}
	l := o.Network.Listener
	if address != "" {
		if l, err = o.Network.Bind(address); err != nil {
			return nil, fmt.Errorf("transport: %w", err)
		}
	}
	if l != nil {
		n.serve(l)
	}
	return n, nil
}

// Port is the TCP port that the node listens on, 0 if it only dials.
func (n *Node) Port() int {
	if n.listener == nil {
		return 0
	}
	if a, ok := n.listener.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// Connect begins an epoch, with a number greater than the epoch's before, and ends that one: its messages are
// dropped, here and when they arrive. It does not wait for connections.
//
// Of two nodes that others can dial, the one with the greater ID dials. A node that others cannot dial dials every peer
// with addresses. Others can dial a node that listens at an address, unless the peers have an entry for it without
// addresses. A node with Network.Listener counts as one that others cannot dial: peers without addresses reach it
// through the listener.
//
// Messages to a peer with a session travel with the session: the peer has no link of its own. A node that accepts
// sessions has no links besides; messages to a peer without a session are refused.
func (n *Node) Connect(epoch uint64, peers []Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	if epoch <= n.epoch {
		return fmt.Errorf("transport: epoch %d begins, but epoch %d has begun before", epoch, n.epoch)
	}
	links, err := n.newLinks(epoch, peers)
	if err != nil {
		return err
	}
	for _, l := range n.links {
		if l.session == nil {
			l.end(refusalf(codeOver, "epoch %d has ended", n.epoch))
		}
	}
	n.endNeighbors(nil)
	n.neighbors = nil
	for id, s := range n.sessions {
		if links[id] == s.link {
			s.newEpoch(epoch)
		} else {
			s.newEpoch(0)
		}
	}
	n.epoch, n.links = epoch, links
	for _, l := range links {
		if l.session == nil {
			l.start()
		}
	}
	return nil
}

// Extend begins an epoch with some peers that have sessions. Other peers stay in theirs: the node is in several epochs,
// each with peers of its own.
func (n *Node) Extend(epoch uint64, peers []Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	for _, p := range peers {
		if s := n.sessions[p.ID]; s != nil {
			s.newEpoch(epoch)
			n.links[p.ID] = s.link
		}
	}
	n.epoch = max(n.epoch, epoch)
	return nil
}

func (n *Node) newLinks(epoch uint64, peers []Peer) (map[string]*link, error) {
	reachable := n.options.Network.Listener == nil && n.listener != nil
	for _, p := range peers {
		if p.ID == n.options.Self {
			reachable = reachable && len(p.Addresses) > 0
		}
	}
	links := map[string]*link{}
	for _, p := range peers {
		switch {
		case p.ID == n.options.Self:
			continue
		case p.ID == "" || len(p.ID) > maxID:
			return nil, fmt.Errorf("transport: member ID %q: expected 1 to %d bytes", p.ID, maxID)
		case links[p.ID] != nil:
			return nil, fmt.Errorf("transport: member %q is listed twice", p.ID)
		case n.sessions[p.ID] != nil:
			links[p.ID] = n.sessions[p.ID].link
			continue
		case n.options.Sessions.Begin != nil:
			continue
		case !reachable && len(p.Addresses) == 0 && n.options.Network.Listener == nil:
			return nil, fmt.Errorf("transport: neither %q nor %q has an address that the other can dial", n.options.Self, p.ID)
		}
		dials := len(p.Addresses) > 0 && (!reachable || n.options.Self > p.ID)
		links[p.ID] = newLink(n, p, epoch, dials)
	}
	return links, nil
}

// Send enqueues a message for a peer of the epoch, or a neighbor, and never blocks. The node does not copy the header
// and the payload: they must not be changed after Send, unless a later Flush has succeeded. The queue has no limit;
// Links reports what is not acknowledged.
func (n *Node) Send(to string, m Message) error {
	if err := checkMessage(m, n.options.limit(m.Class)); err != nil {
		return fmt.Errorf("transport: to member %q: %w", to, err)
	}
	l, epoch, err := n.link(to)
	if err != nil {
		return err
	}
	m.Epoch = epoch
	return l.send(m)
}

// link returns the link to a peer of the epoch or to a neighbor, and the number of the epoch: of the peer's, if it has
// a session.
func (n *Node) link(peer string) (*link, uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, 0, net.ErrClosed
	}
	l := n.links[peer]
	if near := n.neighbors[peer]; l == nil && near != nil {
		return near, near.epoch, nil
	}
	if l == nil {
		return nil, 0, fmt.Errorf("transport: member %q is not in epoch %d", peer, n.epoch)
	}
	if l.session != nil {
		return l, l.session.carries.Load(), nil
	}
	return l, n.epoch, nil
}

// Flush waits until a peer of the epoch has received all messages that were sent to it before. It fails if the peer is
// lost.
func (n *Node) Flush(ctx context.Context, peer string) error {
	l, _, err := n.link(peer)
	if err != nil {
		return err
	}
	return l.flush(ctx)
}

func (n *Node) currentEpoch() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.epoch
}

// sorted are the links of the epoch and those with neighbors, by peer.
func (n *Node) sorted() []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	links := slices.AppendSeq(slices.Collect(maps.Values(n.links)), maps.Values(n.neighbors))
	slices.SortFunc(links, func(a, b *link) int { return strings.Compare(a.peer.ID, b.peer.ID) })
	return links
}

// Links returns the state of the links of the epoch and of those with neighbors: one for each peer and class, sorted by
// peer and class. What a session has carried in the epoch counts.
func (n *Node) Links() []Link {
	var all []Link
	for _, l := range n.sorted() {
		all = append(all, l.statistics()...)
	}
	return all
}

// Close ends all links and sessions and frees what they hold. Messages that were not acknowledged are dropped: call
// Flush before. It returns when no call of Receive or Lost is under way, so neither may call it.
func (n *Node) Close() error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	links, sessions := slices.Collect(maps.Values(n.links)), slices.Collect(maps.Values(n.sessions))
	links = slices.AppendSeq(links, maps.Values(n.neighbors))
	n.links, n.neighbors = map[string]*link{}, nil
	n.mu.Unlock()
	if closed {
		return nil
	}
	for _, s := range sessions {
		s.Leave()
	}
	for _, l := range links {
		l.end(refusalf(Left, hasLeft))
	}
	if n.server != nil {
		n.shutDown()
	}
	n.work.Wait()
	return nil
}

// spawn runs f in a goroutine unless the node is closed.
func (n *Node) spawn(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.work.Go(f)
	}
}

// randomNumber is not 0.
func randomNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return max(1, binary.LittleEndian.Uint64(b[:]))
}
