// Package slowlink is a TCP proxy for tests that behaves as a bad network does: it has latency and a bandwidth, it goes
// silent, it breaks connections, and it lets one side believe in a connection that the other side has lost. It needs no
// privileges. All of it can be changed while connections are open.
package slowlink

import (
	"net"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
)

const (
	chunkSize   = 16 << 10
	queueChunks = 4096                 // under way in a direction of a connection
	burst       = 5 * time.Millisecond // of sending that the link takes ahead of its bandwidth
	socketBytes = 64 << 10             // of the kernel's buffers, so that they do not hide the link
)

// Proxy forwards connections to a target.
type Proxy struct {
	target   string
	listener net.Listener
	work     sync.WaitGroup

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when a setting changes
	closed    bool
	latency   time.Duration
	bandwidth float64 // bits per second, 0 for no limit
	silent    bool
	refusing  bool
	countdown int64 // bytes until all connections are reset, 0 for never
	forwarded int64
	pairs     map[*pair]bool
	free      [2]time.Time // when each direction of the link has sent what it has taken
}

// pair is a connection of a client and the one to the target that belongs to it.
type pair struct {
	proxy          *Proxy
	client, server net.Conn
	done           chan struct{}
	once           sync.Once
	deaf           chan struct{} // closed when the client's side is left open without a server
}

// New starts a proxy on a free port of 127.0.0.1.
func New(target string) (*Proxy, error) { return Listen("127.0.0.1:0", target) }

// Listen starts a proxy on an address.
func Listen(address, target string) (*Proxy, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, changed: make(chan struct{}), pairs: map[*pair]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

// Address is the address to dial instead of the target's.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// SetLatency sets the time that a byte takes in either direction.
func (p *Proxy) SetLatency(d time.Duration) { p.change(func() { p.latency = d }) }

// SetBandwidth sets the bits per second that all connections share in each direction. 0 is no limit.
func (p *Proxy) SetBandwidth(bitsPerSecond float64) {
	p.change(func() { p.bandwidth = bitsPerSecond })
}

// Hang stops all bytes, of new connections too, and closes nothing: a partition, or a stopped machine. Resume ends it;
// then the bytes that were under way arrive, as TCP would have sent them again.
func (p *Proxy) Hang() { p.change(func() { p.silent = true }) }

// Resume ends Hang and Refuse.
func (p *Proxy) Resume() { p.change(func() { p.silent, p.refusing = false, false }) }

// Outage hangs for a time. It returns at once; the channel is closed when the outage is over.
func (p *Proxy) Outage(d time.Duration) <-chan struct{} {
	over := make(chan struct{})
	p.Hang()
	p.work.Go(func() {
		defer close(over)
		timer := time.NewTimer(d)
		defer timer.Stop()
		for {
			closed, changed := p.isClosed()
			if closed {
				return
			}
			select {
			case <-timer.C:
				p.Resume()
				return
			case <-changed:
			}
		}
	})
	return over
}

func (p *Proxy) isClosed() (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed, p.changed
}

// Refuse resets all connections and all new ones until Resume.
func (p *Proxy) Refuse() {
	p.change(func() { p.refusing = true })
	p.Reset()
}

// Reset resets all connections, on both sides.
func (p *Proxy) Reset() {
	for _, c := range p.open() {
		c.reset()
	}
}

// ResetAfter resets all connections when n more bytes have been forwarded, in either direction.
func (p *Proxy) ResetAfter(n int64) { p.change(func() { p.countdown = max(1, n) }) }

// HalfOpen closes the connections to the target only. The clients' stay open, and what they send disappears.
func (p *Proxy) HalfOpen() {
	for _, c := range p.open() {
		c.leaveDeaf()
	}
}

// Connections is the number of open connections.
func (p *Proxy) Connections() int { return len(p.open()) }

// Forwarded is the number of bytes that were forwarded so far.
func (p *Proxy) Forwarded() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forwarded
}

// Close closes everything and waits until no goroutine of the proxy is left.
func (p *Proxy) Close() error {
	p.change(func() { p.closed = true })
	err := p.listener.Close()
	for _, c := range p.open() {
		c.close()
	}
	p.work.Wait()
	return err
}

func (p *Proxy) open() []*pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*pair, 0, len(p.pairs))
	for c := range p.pairs {
		all = append(all, c)
	}
	return all
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &pair{proxy: p, client: client, done: make(chan struct{}), deaf: make(chan struct{})}
		p.mu.Lock()
		closed, refusing := p.closed, p.refusing
		p.pairs[c] = true
		p.mu.Unlock()
		switch {
		case closed:
			c.close()
		case refusing:
			c.reset()
		default:
			p.work.Go(c.connect)
		}
	}
}

// connect dials the target once the link is not silent, and starts to forward.
func (c *pair) connect() {
	defer c.close()
	if !c.waitWhileSilent() {
		return
	}
	server, err := net.Dial("tcp", c.proxy.target)
	if err != nil {
		resetOnClose(c.client)
		return
	}
	limitBuffers(c.client)
	limitBuffers(server)
	c.proxy.mu.Lock()
	c.server = server
	if c.isDone() {
		_ = server.Close()
	}
	c.proxy.mu.Unlock()
	var directions sync.WaitGroup
	directions.Go(func() { c.forward(0, c.client, server) })
	directions.Go(func() { c.forward(1, server, c.client) })
	directions.Wait()
}

func limitBuffers(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(socketBytes)
		_ = tcp.SetWriteBuffer(socketBytes)
	}
}

// waitWhileSilent returns when the link is not silent, or false when the connection is closed.
func (c *pair) waitWhileSilent() bool {
	for {
		c.proxy.mu.Lock()
		silent, changed := c.proxy.silent, c.proxy.changed
		c.proxy.mu.Unlock()
		if !silent {
			return !c.isDone()
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

func (c *pair) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *pair) isDeaf() bool {
	select {
	case <-c.deaf:
		return true
	default:
		return false
	}
}

type chunk struct {
	data []byte
	due  time.Time
}

// forward carries bytes in one direction until the connection ends.
func (c *pair) forward(direction int, from, to net.Conn) {
	chunks := make(chan chunk, queueChunks)
	var writer sync.WaitGroup
	writer.Go(func() { c.write(chunks, to) })
	for {
		data := make([]byte, chunkSize)
		n, err := from.Read(data)
		if n > 0 {
			due, ahead := c.proxy.schedule(direction, n)
			select {
			case chunks <- chunk{data[:n], due}:
			case <-c.done:
			}
			sleep.For(ahead-burst, c.done)
		}
		if err != nil || c.isDone() {
			break
		}
	}
	close(chunks)
	writer.Wait()
	if half, ok := to.(*net.TCPConn); ok && !c.isDeaf() && !c.isDone() {
		_ = half.CloseWrite()
	}
}

// schedule returns when n bytes that enter the link now leave it, and for how long it is busy.
func (p *Proxy) schedule(direction, n int) (due time.Time, busy time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.free[direction].Before(now) {
		p.free[direction] = now
	}
	if p.bandwidth > 0 {
		p.free[direction] = p.free[direction].Add(time.Duration(float64(8*n) / p.bandwidth * float64(time.Second)))
	}
	return p.free[direction].Add(p.latency), p.free[direction].Sub(now)
}

func (c *pair) write(chunks <-chan chunk, to net.Conn) {
	broken := false
	for k := range chunks {
		if broken {
			continue
		}
		sleep.For(time.Until(k.due), c.done)
		if !c.waitWhileSilent() {
			broken = true
			continue
		}
		reset := c.proxy.count(len(k.data))
		if reset > 0 {
			k.data = k.data[:len(k.data)-reset]
		}
		if _, err := to.Write(k.data); err != nil {
			broken = true
		}
		if reset > 0 {
			c.proxy.Reset()
		}
	}
}

// count counts forwarded bytes. It returns how many of them are behind the point at which all connections are reset,
// plus one, or 0.
func (p *Proxy) count(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forwarded += int64(n)
	if p.countdown == 0 {
		return 0
	}
	if p.countdown -= int64(n); p.countdown > 0 {
		return 0
	}
	behind := min(n, int(-p.countdown)+1)
	p.countdown = 0
	return behind
}

func (c *pair) close() {
	c.once.Do(func() {
		close(c.done)
		_ = c.client.Close()
		c.proxy.mu.Lock()
		if c.server != nil {
			_ = c.server.Close()
		}
		delete(c.proxy.pairs, c)
		c.proxy.mu.Unlock()
	})
}

func resetOnClose(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

func (c *pair) reset() {
	resetOnClose(c.client)
	c.proxy.mu.Lock()
	if c.server != nil {
		resetOnClose(c.server)
	}
	c.proxy.mu.Unlock()
	c.close()
}

// leaveDeaf resets the target's side and keeps the client's open.
func (c *pair) leaveDeaf() {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	if c.server == nil {
		return
	}
	if c.isDeaf() {
		return
	}
	close(c.deaf)
	resetOnClose(c.server)
	_ = c.server.Close()
}
