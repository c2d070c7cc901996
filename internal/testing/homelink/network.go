// Package homelink connects machines in memory as ordinary Internet connections do: each machine has an uplink and a
// downlink, which all its connections share, and bytes take a while from one machine to another.
//
//	machine A ──▶ buffer ──▶ uplink of A ──▶ latency ──▶ downlink of B ──▶ machine B
//
// It knows the time by package time alone. In a bubble of testing/synctest an hour of a run takes as long as the run
// computes, and what the run waits for is exact. The dynamics of TCP are omitted: a connection has its share of a link
// at once, and loses nothing. Packages slowlink and lossylink have links in real time, for sockets and for processes.
package homelink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
)

// Connection is how a machine is connected with all others.
type Connection struct {
	Up, Down float64       // bytes a second; 0: any
	Latency  time.Duration // from or to this machine; between two machines it is the larger of theirs
}

// Network connects machines.
type Network struct {
	packet, buffer int
	work           sync.WaitGroup

	mu       sync.Mutex
	machines map[netip.Addr]*Machine
}

// Machine is an end of the network. Connections to itself cost no time.
type Machine struct {
	network    *Network
	address    netip.Addr
	connection Connection
	up, down   link

	mu        sync.Mutex
	listeners map[uint16]*listener
	conns     map[*conn]bool
	port      uint16        // that was used last
	silent    bool          // see Hang
	off       bool          // see Reset
	changed   chan struct{} // closed and replaced when one of these changes
}

// New makes a network without machines. Links carry packets of some bytes, and a connection holds a buffer of some
// bytes before its uplink.
func New(packet, buffer int) *Network {
	return &Network{packet: packet, buffer: buffer, machines: map[netip.Addr]*Machine{}}
}

// Close breaks all connections and waits until nothing of the network runs.
func (n *Network) Close() {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.machines))
	n.mu.Unlock()
	for _, m := range all {
		m.Reset()
	}
	n.work.Wait()
}

// Add adds a machine.
func (n *Network) Add(c Connection) *Machine {
	n.mu.Lock()
	defer n.mu.Unlock()
	number := len(n.machines) + 1
	m := &Machine{network: n, address: netip.AddrFrom4([4]byte{10, 88, byte(number >> 8), byte(number)}), connection: c,
		up: link{rate: c.Up}, down: link{rate: c.Down}, listeners: map[uint16]*listener{},
		conns: map[*conn]bool{}, port: 1023, changed: make(chan struct{})}
	n.machines[m.address] = m
	return m
}

// Host is the address of the machine.
func (m *Machine) Host() string { return m.address.String() }

// Carried returns how many bytes the uplink and the downlink have carried, and in how many packets.
func (m *Machine) Carried() (up, down Carried) { return m.up.count(), m.down.count() }

// Hang holds up all bytes from and to the machine until Resume, as a machine that sleeps or has lost its connection
// does.
func (m *Machine) Hang() { m.change(func() { m.silent = true }) }

// Resume ends Hang.
func (m *Machine) Resume() { m.change(func() { m.silent = false }) }

// Reset breaks all connections of the machine and refuses new ones until Restore, as when its processes are killed.
func (m *Machine) Reset() {
	var all []*conn
	m.change(func() { m.off, all = true, slices.Collect(maps.Keys(m.conns)) })
	for _, c := range all {
		c.reset()
	}
}

// Restore ends Reset.
func (m *Machine) Restore() { m.change(func() { m.off = false }) }

func (m *Machine) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// state reports whether the machine hangs. The channel is closed when that may have changed.
func (m *Machine) state() (silent bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.silent, m.changed
}

// awake waits until the machine does not hang, or something is over. It reports whether it does not.
func (m *Machine) awake(over <-chan struct{}) bool {
	for {
		silent, changed := m.state()
		if !silent {
			return true
		}
		select {
		case <-changed:
		case <-over:
			return false
		}
	}
}

// Listen accepts connections at a port of the machine; 0: any.
func (m *Machine) Listen(address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	port := at.Port()
	if port == 0 {
		m.port++
		port = m.port
	}
	if m.listeners[port] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l := &listener{machine: m, port: port, accepted: make(chan net.Conn), closed: make(chan struct{})}
	m.listeners[port] = l
	return l, nil
}

// Dial connects to a port of a machine, or of this one.
func (m *Machine) Dial(ctx context.Context, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) { return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fail(err)
	}
	to := m
	if !at.Addr().IsLoopback() {
		m.network.mu.Lock()
		to = m.network.machines[at.Addr()]
		m.network.mu.Unlock()
	}
	if to == nil {
		return fail(fmt.Errorf("no machine %v", at.Addr()))
	}
	for _, one := range []*Machine{m, to} {
		if !one.awake(ctx.Done()) {
			return fail(ctx.Err())
		}
	}
	if !sleep.For(2*m.latency(to), ctx.Done()) {
		return fail(ctx.Err())
	}
	to.mu.Lock()
	l := to.listeners[at.Port()]
	to.mu.Unlock()
	if l == nil {
		return fail(syscall.ECONNREFUSED)
	}
	near, far := connect(m, to, at.Port())
	if near == nil {
		return fail(syscall.ECONNREFUSED)
	}
	select {
	case l.accepted <- far:
		return near, nil
	case <-l.closed:
		err = syscall.ECONNREFUSED
	case <-ctx.Done():
		err = ctx.Err()
	}
	near.reset()
	return fail(err)
}

// latency is the time of a byte to another machine.
func (m *Machine) latency(to *Machine) time.Duration {
	if m == to {
		return 0
	}
	return max(m.connection.Latency, to.connection.Latency)
}

// listener accepts connections.
type listener struct {
	machine  *Machine
	port     uint16
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.machine.mu.Lock()
		delete(l.machine.listeners, l.port)
		l.machine.mu.Unlock()
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.machine.at(l.port) }

func (m *Machine) at(port uint16) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(m.address, port))
}

// Carried is what a link has carried.
type Carried struct{ Bytes, Packets int64 }

// link carries packets one after the other.
type link struct {
	rate float64 // bytes a second; 0: any

	mu      sync.Mutex
	free    time.Time // when it has carried all that it has taken
	carried Carried
}

// take takes a packet and returns how long it is until the link has carried it.
func (l *link) take(bytes int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carried.Bytes += int64(bytes)
	l.carried.Packets++
	if l.rate == 0 {
		return 0
	}
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(bytes) / l.rate * float64(time.Second)))
	return time.Until(l.free)
}

func (l *link) count() Carried {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.carried
}

var errReset = errors.New("connection reset by peer")
