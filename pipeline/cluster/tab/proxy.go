package tab

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/gpupipe/gpupipe/internal/dial"
	"github.com/gpupipe/gpupipe/internal/sleep"
)

// proxy holds the tickets of an epoch and the connections of all tabs.
type proxy struct {
	mu      sync.Mutex
	epoch   uint64
	tickets map[string]Target
	waiting map[string]waiter // by the hash of a tab
	calls   uint64            // by which tabs asked to wait
	open    map[*conn]bool
	closed  bool
	serving sync.WaitGroup
}

// waiter is the newest call of a tab that waits, or has waited, for another tab.
type waiter struct {
	call uint64
	conn *conn // nil before it is there
	met  bool  // another tab has it
}

func newProxy() proxy {
	return proxy{tickets: map[string]Target{}, waiting: map[string]waiter{}, open: map[*conn]bool{}}
}

// Target is a peer to which a ticket leads.
type Target struct {
	Addresses []string // host:port
	Tab       string   // of another tab, which has no addresses: protocol.Info.Tab
}

// Tickets returns, for each peer of a tab, the path by which the tab connects to it. The tickets of earlier epochs open
// no connection any more.
func (s *Server) Tickets(epoch uint64, peers map[string]Target) map[string]string {
	p := &s.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch > p.epoch {
		p.epoch = epoch
		clear(p.tickets)
	}
	paths := make(map[string]string, len(peers))
	for id, target := range peers {
		ticket := rand.Text()
		p.tickets[ticket] = target
		paths[id] = "peer/" + ticket
	}
	return paths
}

// target returns the peer that a ticket names.
func (p *proxy) target(ticket string) (Target, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.tickets[ticket]
	return t, ok
}

// call begins a tab's wait for another tab, and ends the wait of its call before, whose connection may be there later.
func (p *proxy) call(tab string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.waiting[tab]; before.conn != nil && !before.met {
		go before.conn.Close()
	}
	p.calls++
	p.waiting[tab] = waiter{call: p.calls}
	return p.calls
}

// wait keeps the connection of a tab's call, unless the tab has called again.
func (p *proxy) wait(tab string, call uint64, c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[tab].call != call {
		_ = c.Close()
		return
	}
	p.waiting[tab] = waiter{call: call, conn: c}
}

// hangUp ends a call.
func (p *proxy) hangUp(tab string, call uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[tab].call == call {
		delete(p.waiting, tab)
	}
}

// Accepted is what the proxy writes on a tab's waiting connection when another tab is there.
const Accepted = 1

// meet returns the connection on which a tab waits, when it does.
func (p *proxy) meet(ctx context.Context, tab string) (net.Conn, error) {
	for ctx.Err() == nil {
		p.mu.Lock()
		w := p.waiting[tab]
		free := w.conn != nil && !w.met
		if free {
			w.met = true
			p.waiting[tab] = w
		}
		p.mu.Unlock()
		if free {
			if _, err := w.conn.Write([]byte{Accepted}); err == nil {
				return w.conn, nil
			}
			_ = w.conn.Close()
		}
		sleep.For(meetPause, ctx.Done())
	}
	return nil, fmt.Errorf("the other tab does not wait for connections: %w", context.Cause(ctx))
}

// meetPause is the time between two looks for a waiting tab.
const meetPause = 20 * time.Millisecond

// reach connects to a peer.
func (p *proxy) reach(ctx context.Context, t Target) (net.Conn, error) {
	if t.Tab != "" {
		return p.meet(ctx, t.Tab)
	}
	c, _, err := dial.First(ctx, t.Addresses, func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	})
	return c, err
}

// connect makes a request a WebSocket and has it served. It returns when that connection is closed.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, serve func(*conn)) {
	if !s.proxy.room() {
		s.o.Note("tab: %s: refused: more than %d connections", r.RemoteAddr, maxConnections)
		http.Error(w, "too many connections", http.StatusServiceUnavailable)
		return
	}
	ws, err := websocket.Accept(w, r, nil) // it refuses requests of other origins
	if err != nil {
		s.o.Note("tab: %s: refused: %v", r.RemoteAddr, err)
		return
	}
	c := newConn(ws, r.RemoteAddr)
	if !s.proxy.add(c) {
		_ = c.Close()
		return
	}
	defer s.proxy.remove(c)
	serve(c)
	<-c.ended
}

func (p *proxy) room() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open) < maxConnections
}

func (p *proxy) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[c] = true
	p.serving.Add(1)
	return true
}

func (p *proxy) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	p.serving.Done()
}

// farewell is how long connections may take to end by themselves when the server closes: the last words of servers that
// have closed before are on their way.
const farewell = 500 * time.Millisecond

// close ends all connections and waits until none is served.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	timer := time.AfterFunc(farewell, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for c := range p.open {
			_ = c.Close()
		}
	})
	defer timer.Stop()
	p.serving.Wait()
}

// conn is a tab's WebSocket as a stream of bytes.
type conn struct {
	net.Conn
	ws     *websocket.Conn
	remote remoteAddr
	once   sync.Once
	ended  chan struct{} // closed when the connection is closed
}

func newConn(ws *websocket.Conn, remote string) *conn {
	return &conn{Conn: websocket.NetConn(context.Background(), ws, websocket.MessageBinary), ws: ws, remote: remoteAddr(remote),
		ended: make(chan struct{})}
}

// RemoteAddr is the address of the browser.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// Close does not wait for the browser.
func (c *conn) Close() error {
	c.once.Do(func() {
		_ = c.ws.CloseNow()
		close(c.ended)
	})
	return nil
}

// remoteAddr is host:port.
type remoteAddr string

func (remoteAddr) Network() string  { return "tcp" }
func (a remoteAddr) String() string { return string(a) }

// pipe copies bytes between two connections until one of them ends, and closes both.
func pipe(a, b net.Conn) {
	var copying sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		copying.Go(func() {
			_, _ = io.Copy(p[0], p[1])
			_ = a.Close()
			_ = b.Close()
		})
	}
	copying.Wait()
}
