package homelink

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
)

// conn is one end of a connection.
type conn struct {
	machine       *Machine
	local, remote net.Addr
	peer          *conn
	out           *pipe         // what this end sends
	over          chan struct{} // closed when the connection is reset
	once          *sync.Once    // of over
	closing       sync.Once
	reads, writes deadline
}

// pipe is one direction of a connection.
type pipe struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something below changes
	queued  []byte        // before the uplink
	arrived []byte
	shut    bool // nothing more is sent
	ended   bool // all that was sent has arrived
	deaf    bool // the receiver is closed
}

func newPipe() *pipe { return &pipe{changed: make(chan struct{})} }

func (p *pipe) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// over reports whether all that was sent has arrived.
func (p *pipe) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// connect makes the ends of a connection, unless one of the machines is off.
func connect(from, to *Machine, port uint16) (near, far *conn) {
	over, once := make(chan struct{}), &sync.Once{}
	from.mu.Lock()
	from.port++
	local := from.at(from.port)
	from.mu.Unlock()
	near = &conn{machine: from, local: local, remote: to.at(port), out: newPipe(), over: over, once: once}
	far = &conn{machine: to, local: to.at(port), remote: local, out: newPipe(), over: over, once: once}
	near.peer, far.peer = far, near
	for _, c := range []*conn{near, far} {
		c.reads.over, c.writes.over = make(chan struct{}), make(chan struct{})
		if !c.keep() {
			near.reset()
			return nil, nil
		}
	}
	for _, c := range []*conn{near, far} {
		from.network.work.Go(c.carry)
	}
	return near, far
}

// keep adds the connection to its machine's, unless that is off.
func (c *conn) keep() bool {
	c.machine.mu.Lock()
	defer c.machine.mu.Unlock()
	if c.machine.off {
		return false
	}
	c.machine.conns[c] = true
	return true
}

// reset ends both ends of the connection at once.
func (c *conn) reset() {
	c.once.Do(func() { close(c.over) })
	for _, one := range []*conn{c, c.peer} {
		one.machine.mu.Lock()
		delete(one.machine.conns, one)
		one.machine.mu.Unlock()
	}
}

// packet is on its way.
type packet struct {
	data []byte
	due  time.Time
}

// carry carries what this end sends to the other.
func (c *conn) carry() {
	const underWay = 1 << 14
	packets := make(chan packet, underWay)
	var arriving sync.WaitGroup
	arriving.Go(func() { c.arrive(packets) })
	for {
		data, ok := c.next()
		if !ok || c.machine != c.peer.machine && !sleep.For(c.machine.up.take(len(data)), c.over) {
			break
		}
		packets <- packet{data, time.Now().Add(c.machine.latency(c.peer.machine))}
	}
	close(packets)
	arriving.Wait()
}

// next waits for the next packet of what this end sends; false: there is none.
func (c *conn) next() ([]byte, bool) {
	for p := c.out; ; {
		p.mu.Lock()
		changed, shut, data := p.changed, p.shut, p.queued[:min(len(p.queued), c.machine.network.packet)]
		p.mu.Unlock()
		if len(data) > 0 {
			p.change(func() { p.queued = p.queued[len(data):] })
			return data, true
		}
		if shut {
			return nil, false
		}
		select {
		case <-changed:
		case <-c.over:
			return nil, false
		}
	}
}

// arrive delivers packets to the other end.
func (c *conn) arrive(packets <-chan packet) {
	p, to, lost := c.out, c.peer.machine, false
	for k := range packets {
		if lost = lost || !sleep.For(time.Until(k.due), c.over) || !c.machine.awake(c.over) || !to.awake(c.over) ||
			c.machine != to && !sleep.For(to.down.take(len(k.data)), c.over); lost {
			continue
		}
		unwanted := false
		p.change(func() {
			if unwanted = p.deaf; !unwanted {
				p.arrived = append(p.arrived, k.data...)
			}
		})
		if unwanted && c.peer.out.over() {
			c.reset()
		}
	}
	select {
	case <-c.over: // there may have been no packet to lose
	default:
		if !lost {
			p.change(func() { p.ended = true })
		}
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for p := c.peer.out; ; {
		p.mu.Lock()
		n, changed, ended, deaf := copy(b, p.arrived), p.changed, p.ended, p.deaf
		if n > 0 && !deaf {
			p.arrived = p.arrived[n:]
		}
		p.mu.Unlock()
		switch {
		case deaf:
			return 0, net.ErrClosed
		case n > 0 || len(b) == 0:
			return n, nil
		case ended:
			return 0, io.EOF
		}
		if err := c.wait(changed, &c.reads); err != nil {
			return 0, err
		}
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	for p := c.out; n < len(b); {
		taken, shut := 0, false
		p.mu.Lock()
		changed := p.changed
		if shut = p.shut; !shut {
			taken = min(len(b)-n, c.machine.network.buffer-len(p.queued))
		}
		p.mu.Unlock()
		if shut {
			return n, net.ErrClosed
		}
		if taken > 0 {
			p.change(func() { p.queued = append(p.queued, b[n:n+taken]...) })
			n += taken
			continue
		}
		if err := c.wait(changed, &c.writes); err != nil {
			return n, err
		}
	}
	return n, nil
}

// wait waits until a pipe changes.
func (c *conn) wait(changed <-chan struct{}, d *deadline) error {
	select {
	case <-d.passed():
		return os.ErrDeadlineExceeded
	default:
	}
	select {
	case <-changed:
		return nil
	case <-c.over:
		return errReset
	case <-d.passed():
		return os.ErrDeadlineExceeded
	}
}

// Close implements net.Conn. What was written still arrives.
func (c *conn) Close() error {
	c.closing.Do(func() {
		c.out.change(func() { c.out.shut = true })
		both := false
		in := c.peer.out
		in.change(func() { in.deaf, in.arrived, both = true, nil, in.shut })
		if both { // nothing is left to arrive that anyone reads
			c.reset()
		}
	})
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.reads.set(t)
	c.writes.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.reads.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writes.set(t)
	return nil
}

// deadline is a time that may be changed.
type deadline struct {
	mu     sync.Mutex
	number int // of times that it was set
	timer  *time.Timer
	over   chan struct{} // closed when it has passed
}

func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

// set changes the deadline; the zero time: there is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.number++; d.timer != nil {
		d.timer.Stop()
	}
	select {
	case <-d.over:
		d.over = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	number := d.number
	pass := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.number == number {
			close(d.over)
		}
	}
	d.timer = time.AfterFunc(max(0, time.Until(t)), pass)
}
