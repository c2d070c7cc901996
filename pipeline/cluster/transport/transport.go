package transport

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// Options describe a node. TLS, Identify, Self and Receive are required.
type Options struct {
	// Self is the ID of this member, as its certificate names it.
	Self string
	// TLS secures both sides. It must demand and verify a certificate of clients (ClientAuth), and verify servers by
	// RootCAs with ServerName, or by VerifyConnection.
	TLS *tls.Config
	// Identify returns the member that a verified certificate names.
	Identify func(*x509.Certificate) (member string, err error)
	// Receive takes a message. The messages of a sender and class come in order, from one goroutine. It may block for a
	// short time only: then messages of that sender and class wait, here and at the sender. It owns the message.
	Receive func(from string, m Message)
	// Lost says once in an epoch that a peer is gone: it has had no connection for longer than Grace, has closed its
	// node, was restarted, or broke the protocol. Messages to it are dropped and refused from then on.
	Lost func(peer string, err error)
	// Sessions are the node's sessions with other members.
	Sessions Sessions
	// Grace is how long a link of an epoch waits for a connection, 20 s by default.
	Grace time.Duration
	// Silence is how long a connection may bring no byte, 5 s by default. A ping goes out each fifth of it.
	Silence time.Duration
	// MaxMessage is the most bytes of a message's payload, 1 GiB by default. Both sides refuse larger ones.
	MaxMessage int64
	// Uplink is the most bytes a second that the node sends, over all links; 0: no limit. Requests do not wait.
	Uplink float64
	// Congestion names the TCP congestion control for connections that leave the machine, "bbr" by default. A kernel
	// that does not have it uses its own, as for "system".
	Congestion string
	// Listener accepts connections of a node without an address, such as those that a relay passes on; nil: none are.
	// The node owns it.
	Listener net.Listener
	// Bind opens the listener at an address; nil is TCP.
	Bind func(address string) (net.Listener, error)
	// Dial opens a connection to an address of a peer. nil is TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Explain makes an error of TLS plain to users; nil: it stays as it is.
	Explain func(err error) error
	// Note takes messages for the log: refusals and broken connections. Equal ones are dropped for 10 s.
	Note func(format string, args ...any)

	timing timing
}

// timing holds what tests shorten.
type timing struct {
	ping       time.Duration // between two pings
	silence    time.Duration // without a byte after which a connection is closed
	hello      time.Duration // for the handshake of TLS, and for the hello
	progress   time.Duration // without a whole control message after which a connection is closed
	minBackoff time.Duration // between two attempts to dial
	maxBackoff time.Duration
	farewell   time.Duration // for the reason of a refusal to reach the peer
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Self == "" || len(o.Self) > maxID:
		return o, fmt.Errorf("transport: member ID %q: expected 1 to %d bytes", o.Self, maxID)
	case o.TLS == nil || o.TLS.ClientAuth < tls.RequireAnyClientCert:
		return o, errors.New("transport: the TLS config does not demand certificates of clients")
	case o.Identify == nil || o.Receive == nil:
		return o, errors.New("transport: Options.Identify and Options.Receive are required")
	}
	if o.Lost == nil {
		o.Lost = func(string, error) {}
	}
	if o.Grace == 0 {
		o.Grace = 20 * time.Second
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = 1 << 30
	}
	switch o.Congestion {
	case "":
		o.Congestion = "bbr"
	case "system":
		o.Congestion = ""
	}
	if o.Bind == nil {
		o.Bind = func(address string) (net.Listener, error) { return net.Listen("tcp", address) }
	}
	if o.Dial == nil {
		congestion := o.Congestion
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", address)
			if err == nil {
				tune(c, congestion)
			}
			return c, err
		}
	}
	o.Sessions = o.Sessions.withDefaults()
	if o.Explain == nil {
		o.Explain = func(err error) error { return err }
	}
	if o.Silence == 0 {
		o.Silence = DefaultSilence
	}
	if o.timing == (timing{}) {
		o.timing = timing{ping: o.Silence / 5, silence: o.Silence, hello: 5 * time.Second, progress: 30 * time.Second,
			minBackoff: 20 * time.Millisecond, maxBackoff: time.Second, farewell: 500 * time.Millisecond}
	}
	return o, nil
}

// DefaultSilence is the default of Options.Silence.
const DefaultSilence = 5 * time.Second

// limit is the most bytes of the payload of a message of a class.
func (o Options) limit(c Class) int64 {
	if c == Urgent {
		return min(MaxUrgent, o.MaxMessage)
	}
	return o.MaxMessage
}

// Node is the end of the transport in one process.
type Node struct {
	options    Options
	notes      notes
	listener   net.Listener // nil if the node only dials
	server     *grpc.Server
	pending    atomic.Int64 // connections that have not said hello
	handshakes *rate.Limiter
	work       sync.WaitGroup
	admitting  sync.Mutex // sessions begin one after the other
	uplink     uplink

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
// address it accepts the connections of Options.Listener, or none, as in a browser tab.
func Listen(address string, o Options) (*Node, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{options: o, uplink: newUplink(o.Uplink),
		notes: notes{note: o.Note}, listener: o.Listener, handshakes: rate.NewLimiter(handshakesPerSecond,
			2*handshakesPerSecond), links: map[string]*link{}, sessions: map[string]*Session{}, hellos: map[string]*rate.Limiter{},
		connections: map[*watchedConn]*connection{}}
	if address == "" {
		if n.listener != nil {
			n.serve()
		}
		return n, nil
	}
	if n.listener, err = o.Bind(address); err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	n.serve()
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
// addresses. A node with Options.Listener counts as one that others cannot dial: peers without addresses reach it
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
			s.link.newEpoch(epoch)
		} else {
			s.link.newEpoch(0)
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
			s.link.newEpoch(epoch)
			n.links[p.ID] = s.link
		}
	}
	n.epoch = max(n.epoch, epoch)
	return nil
}

func (n *Node) newLinks(epoch uint64, peers []Peer) (map[string]*link, error) {
	reachable := n.options.Listener == nil && n.listener != nil
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
		case !reachable && len(p.Addresses) == 0 && n.options.Listener == nil:
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
		return l, l.carries.Load(), nil
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
