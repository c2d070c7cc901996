// Package lossylink runs processes of tests in network namespaces of their own and connects these by an emulated
// network, which delays packets, limits their rate, loses some of them, and shows them to the test. The processes have
// the TCP of the system, so that they see what a real link would do to it.
//
// Each host is a process with a TUN device. The device's descriptor is in the process of the test, which forwards
// packets from one host to the other:
//
//	host A ──▶ TUN ──▶ loss ──▶ rate ──▶ delay ──▶ TUN ──▶ host B
//
// It needs no root, but a kernel that lets users make namespaces, and permission to open /dev/net/tun.
package lossylink

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mtu         = 1500
	queued      = 4096                  // packets under way in one direction
	mostWaiting = 50 * time.Millisecond // in the queue of the rate; a packet that would wait longer is lost
)

// Options describe the network. The zero value loses and delays nothing.
type Options struct {
	Delay     time.Duration       // of each packet
	Bandwidth float64             // bits per second that each host sends, 0 for no limit
	Loss      float64             // probability that a packet is lost
	Seed      uint64              // of the losses
	Capture   func(packet []byte) // sees each packet that a host sends, one at a time; nil: none
}

// Network connects hosts. Each has an IPv4 address in 10.77.0.0/24.
type Network struct {
	options Options
	cut     atomic.Bool
	sent    atomic.Int64
	lost    atomic.Int64
	work    sync.WaitGroup
	capture sync.Mutex
	stop    chan struct{}
	closing sync.Once

	mu     sync.Mutex
	hosts  map[netip.Addr]*host
	opened []*host
}

// host is the end of the network that one process has.
type host struct {
	network *Network
	tun     *os.File
	random  *rand.Rand
	free    time.Time // when the rate permits another packet
	packets chan packet
}

// packet is under way.
type packet struct {
	data []byte
	due  time.Time
}

// New makes a network without hosts.
func New(o Options) *Network {
	return &Network{options: o, hosts: map[netip.Addr]*host{}, stop: make(chan struct{})}
}

// Address is the address of a host, counted from 1.
func Address(host int) string { return netip.AddrFrom4([4]byte{10, 77, 0, byte(host)}).String() }

// Start starts a process as a host. Its main function must call Enter first. A host may be started again after it has
// ended.
func (n *Network) Start(number int, c *exec.Cmd) error {
	tun, err := start(c, Address(number))
	if err != nil {
		if c.Process != nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		return err
	}
	h := &host{network: n, tun: tun, random: rand.New(rand.NewPCG(n.options.Seed, uint64(number))), packets: make(chan packet, queued)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[netip.MustParseAddr(Address(number))] = h
	n.opened = append(n.opened, h)
	n.work.Go(h.read)
	n.work.Go(h.forward)
	return nil
}

// Cut loses all packets, until Restore.
func (n *Network) Cut() { n.cut.Store(true) }

// Restore ends Cut.
func (n *Network) Restore() { n.cut.Store(false) }

// Packets returns how many packets the hosts have sent, and how many of them were lost.
func (n *Network) Packets() (sent, lost int64) { return n.sent.Load(), n.lost.Load() }

// Close ends the network. The processes are the caller's. It may be called again.
func (n *Network) Close() {
	n.closing.Do(func() { close(n.stop) })
	n.mu.Lock()
	for _, h := range n.opened {
		_ = h.tun.Close()
	}
	n.mu.Unlock()
	n.work.Wait()
}

// read takes the packets that the host sends.
func (h *host) read() {
	defer close(h.packets)
	for {
		data := make([]byte, mtu)
		size, err := h.tun.Read(data)
		if err != nil {
			return // closed, or the namespace is gone
		}
		if data = data[:size]; size < 20 || data[0]>>4 != 4 {
			continue // IPv6, which the network does not carry
		}
		if h.network.see(data); h.loses() {
			h.network.lost.Add(1)
			continue
		}
		due, ok := h.schedule(size)
		if !ok {
			h.network.lost.Add(1)
			continue
		}
		select {
		case h.packets <- packet{data, due}:
		default:
			h.network.lost.Add(1)
		}
	}
}

// see counts and captures a packet.
func (n *Network) see(data []byte) {
	n.sent.Add(1)
	if n.options.Capture != nil {
		n.capture.Lock()
		defer n.capture.Unlock()
		n.options.Capture(data)
	}
}

// loses draws whether the next packet is lost.
func (h *host) loses() bool {
	return h.random.Float64() < h.network.options.Loss || h.network.cut.Load()
}

// schedule returns when a packet arrives that is sent now, or false if the queue is too long.
func (h *host) schedule(size int) (due time.Time, ok bool) {
	o, now := h.network.options, time.Now()
	if h.free.Before(now) {
		h.free = now
	}
	if h.free.Sub(now) > mostWaiting {
		return due, false
	}
	if o.Bandwidth > 0 {
		h.free = h.free.Add(time.Duration(float64(8*size) / o.Bandwidth * float64(time.Second)))
	}
	return h.free.Add(o.Delay), true
}

// forward delivers packets when they are due.
func (h *host) forward() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p := range h.packets {
		timer.Reset(time.Until(p.due))
		select {
		case <-timer.C:
		case <-h.network.stop:
			continue
		}
		h.network.mu.Lock()
		to := h.network.hosts[netip.AddrFrom4([4]byte(p.data[16:20]))]
		h.network.mu.Unlock()
		if to != nil {
			_, _ = to.tun.Write(p.data) // the host may be gone
		}
	}
}

// Segment is what a TCP packet carries.
type Segment struct {
	From, To netip.AddrPort
	Sequence uint32 // of the first byte of the payload, and of the packet that opens the connection
	Opens    bool   // it opens the connection
	Payload  []byte // of the packet, not copied
}

// Parse parses a packet. It returns false for one that is not TCP.
func Parse(packet []byte) (s Segment, ok bool) {
	const ipHeader, tcpHeader, tcp, syn = 20, 20, 6, 2
	if len(packet) < ipHeader || packet[9] != tcp {
		return s, false
	}
	rest := packet[int(packet[0]&15)*4:]
	if len(rest) < tcpHeader || int(rest[12]>>4)*4 > len(rest) {
		return s, false
	}
	port := func(address []byte, at int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address)), binary.BigEndian.Uint16(rest[at:]))
	}
	return Segment{From: port(packet[12:16], 0), To: port(packet[16:20], 2), Sequence: binary.BigEndian.Uint32(rest[4:]),
		Opens: rest[13]&syn != 0, Payload: rest[int(rest[12]>>4)*4:]}, true
}
