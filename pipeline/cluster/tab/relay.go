package tab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// relay holds the tickets of an epoch and the connections of all tabs.
type relay struct {
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

func newRelay() relay {
	return relay{tickets: map[string]Target{}, waiting: map[string]waiter{}, open: map[*conn]bool{}}
}

// Target is a peer to which a ticket leads.
type Target struct {
	Addresses []string // host:port
	Tab       string   // of another tab, which has no addresses: protocol.Info.Tab
}

// Tickets returns, for each peer of a tab, the path by which the tab connects to it. The tickets of earlier epochs open
// no connection any more.
func (s *Server) Tickets(epoch uint64, peers map[string]Target) map[string]string {
	r := &s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch > r.epoch {
		r.epoch = epoch
		clear(r.tickets)
	}
	paths := make(map[string]string, len(peers))
	for id, target := range peers {
		ticket := rand.Text()
		r.tickets[ticket] = target
		paths[id] = "peer/" + ticket
	}
	return paths
}

// target returns the peer that a ticket names.
func (r *relay) target(ticket string) (Target, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.tickets[ticket]
	return t, ok
}

// call begins a tab's wait for another tab, and ends the wait of its call before, whose connection may be there later.
func (r *relay) call(tab string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.waiting[tab]; before.conn != nil && !before.met {
		go before.conn.Close()
	}
	r.calls++
	r.waiting[tab] = waiter{call: r.calls}
	return r.calls
}

// wait keeps the connection of a tab's call, unless the tab has called again.
func (r *relay) wait(tab string, call uint64, c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[tab].call != call {
		_ = c.Close()
		return
	}
	r.waiting[tab] = waiter{call: call, conn: c}
}

// hangUp ends a call.
func (r *relay) hangUp(tab string, call uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[tab].call == call {
		delete(r.waiting, tab)
	}
}

// Accepted is what the relay writes on a tab's waiting connection when another tab is there.
const Accepted = 1

// meet returns the connection on which a tab waits, when it does.
func (r *relay) meet(ctx context.Context, tab string) (net.Conn, error) {
	for ctx.Err() == nil {
		r.mu.Lock()
		w := r.waiting[tab]
		free := w.conn != nil && !w.met
		if free {
			w.met = true
			r.waiting[tab] = w
		}
		r.mu.Unlock()
		if free {
			if _, err := w.conn.Write([]byte{Accepted}); err == nil {
				return w.conn, nil
			}
			_ = w.conn.Close()
		}
		select {
		case <-time.After(meetPause):
		case <-ctx.Done():
		}
	}
	return nil, fmt.Errorf("the other tab does not wait for connections: %w", context.Cause(ctx))
}

// meetPause is the time between two looks for a waiting tab.
const meetPause = 20 * time.Millisecond

// reach connects to a peer.
func (r *relay) reach(ctx context.Context, t Target) (net.Conn, error) {
	if t.Tab != "" {
		return r.meet(ctx, t.Tab)
	}
	return dialAny(ctx, t.Addresses)
}

// connect makes a request a WebSocket and has it served. It returns when that connection is closed.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, serve func(*conn)) {
	if !s.relay.room() {
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
	if !s.relay.add(c) {
		_ = c.Close()
		return
	}
	defer s.relay.remove(c)
	serve(c)
	<-c.ended
}

func (r *relay) room() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open) < maxConnections
}

func (r *relay) add(c *conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.open[c] = true
	r.serving.Add(1)
	return true
}

func (r *relay) remove(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
	r.serving.Done()
}

// farewell is how long connections may take to end by themselves when the server closes: the last words of servers that
// have closed before are on their way.
const farewell = 500 * time.Millisecond

// close ends all connections and waits until none is served.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	timer := time.AfterFunc(farewell, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for c := range r.open {
			_ = c.Close()
		}
	})
	defer timer.Stop()
	r.serving.Wait()
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

// dialAny returns the first connection to one of a peer's addresses.
func dialAny(ctx context.Context, addresses []string) (net.Conn, error) {
	var failures []error
	for _, address := range addresses {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return c, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}
