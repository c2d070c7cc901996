package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	maxConnections        = 256 // at once, those in a handshake included
	maxConnectionsPerHost = 32
)

// secureListener hands out connections whose TLS handshake is complete. Slow or refused handshakes do not hold up
// others. It limits the connections at once, in all and for each address.
type secureListener struct {
	net.Listener
	config  *tls.Config
	timeout time.Duration // of a handshake
	note    func(format string, args ...any)

	ready  chan net.Conn
	closed chan struct{}
	failed error // of Accept; written before closed is closed
	wait   sync.WaitGroup

	mu    sync.Mutex
	hosts map[netip.Prefix]int
	open  map[net.Conn]bool
}

func newSecureListener(l net.Listener, config *tls.Config, timeout time.Duration, note func(string, ...any)) *secureListener {
	s := &secureListener{Listener: l, config: config, timeout: timeout, note: note,
		ready: make(chan net.Conn), closed: make(chan struct{}), hosts: map[netip.Prefix]int{}, open: map[net.Conn]bool{}}
	s.wait.Go(s.run)
	return s
}

func (s *secureListener) run() {
	defer close(s.closed)
	for pause := time.Millisecond; ; {
		c, err := s.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			s.failed = err
			return
		}
		if err != nil { // too many open files, for example
			s.note("accept: %v", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		if reason := s.admit(c); reason != "" {
			s.note("%s: refused: %s", c.RemoteAddr(), reason)
			_ = c.Close()
			continue
		}
		s.wait.Go(func() { s.handshake(c) })
	}
}

// admit counts a connection, or says why there is no room for it.
func (s *secureListener) admit(c net.Conn) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	host := prefixOf(remoteIP(c.RemoteAddr().String()))
	switch {
	case len(s.open) >= maxConnections:
		return "too many connections"
	case s.hosts[host] >= maxConnectionsPerHost:
		return "too many connections from this address"
	}
	s.open[c] = true
	s.hosts[host]++
	return ""
}

func (s *secureListener) release(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open[c] {
		return
	}
	delete(s.open, c)
	host := prefixOf(remoteIP(c.RemoteAddr().String()))
	if s.hosts[host]--; s.hosts[host] == 0 {
		delete(s.hosts, host)
	}
}

func (s *secureListener) handshake(raw net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	c := tls.Server(&countedConn{raw, s}, s.config)
	if err := c.HandshakeContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = refuse(TooSlow, "the TLS handshake took longer than %v", s.timeout)
		}
		s.note("%s: refused: %v", raw.RemoteAddr(), Explain(err))
		_ = c.Close()
		return
	}
	select {
	case s.ready <- c:
	case <-s.closed:
		_ = c.Close()
	}
}

// Accept returns the next connection whose handshake is complete, a *tls.Conn.
func (s *secureListener) Accept() (net.Conn, error) {
	select {
	case c := <-s.ready:
		return c, nil
	case <-s.closed:
		return nil, s.failed
	}
}

// Close stops accepting and closes the connections in a handshake. It waits until nothing of the listener runs.
func (s *secureListener) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
	return err
}

// countedConn frees its place in the listener when it is closed.
type countedConn struct {
	net.Conn
	listener *secureListener
}

func (c *countedConn) Close() error {
	c.listener.release(c.Conn)
	return c.Conn.Close()
}

// remoteIP returns the IP of host:port, and the zero Addr if there is none, as for in-memory connections.
func remoteIP(address string) netip.Addr {
	if ap, err := netip.ParseAddrPort(address); err == nil {
		return ap.Addr()
	}
	return netip.IPv4Unspecified()
}
