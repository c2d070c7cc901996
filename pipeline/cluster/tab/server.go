package tab

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
)

const (
	maxConnections = 512 // WebSockets at once
	maxHeader      = 16 << 10
	headerTimeout  = 5 * time.Second
	idleTimeout    = 30 * time.Second
	maxSecret      = 256 // bytes of a secret for leaving
	dialTimeout    = 5 * time.Second

	policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// Options configures [Serve].
type Options struct {
	Certificate *tls.Certificate    // of the page; nil: plain HTTP, which gives WebGPU to pages from localhost only
	Files       fs.FS               // of the page; nil: Assets()
	Join        func(net.Conn)      // serves a connection to the server that admits members
	Coordinator string              // host:port of the coordinator's node
	Left        func(secret string) // is called when a page says that it is closed; the tab gave the secret's hash in protocol.Info.Tab
	Note        func(format string, args ...any)
}

// Server serves the page, and the WebSockets of tabs.
type Server struct {
	o        Options
	http     *http.Server
	listener net.Listener
	serving  sync.WaitGroup
	proxy    proxy
}

// Serve serves the page on a listener until Close. It owns the listener.
func Serve(l net.Listener, o Options) (*Server, error) {
	if o.Files == nil {
		o.Files = Assets()
	}
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	err := check(o.Files)
	if err == nil && o.Certificate == nil {
		err = checkLocal(l.Addr())
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if o.Certificate != nil {
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*o.Certificate},
			NextProtos: []string{"http/1.1"}})
	}
	s := &Server{o: o, listener: l, proxy: newProxy()}
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0)}
	s.serving.Go(func() { _ = s.http.Serve(l) })
	return s, nil
}

// checkLocal refuses addresses from which a page without a certificate gets no WebGPU.
func checkLocal(a net.Addr) error {
	if at, err := netip.ParseAddrPort(a.String()); err == nil && at.Addr().IsLoopback() {
		return nil
	}
	return fmt.Errorf("the page at %v needs a certificate: browsers give WebGPU to pages from localhost or https only", a)
}

// URL returns the address of the page under a name of this machine; with "", under localhost.
func (s *Server) URL(host string) string {
	scheme := "http"
	if s.o.Certificate != nil {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(cmp.Or(host, "localhost"), strconv.Itoa(s.listener.Addr().(*net.TCPAddr).Port)) + "/"
}

// Close ends the server and the connections of all tabs.
func (s *Server) Close() error {
	err := s.http.Close()
	s.proxy.close()
	s.serving.Wait()
	return err
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]file{
		"/{$}":          {"index.html", "text/html; charset=utf-8", false},
		"/style.css":    {"style.css", "text/css; charset=utf-8", false},
		"/page.js":      {"page.js", "text/javascript; charset=utf-8", false},
		"/worker.js":    {"worker.js", "text/javascript; charset=utf-8", false},
		"/wasm_exec.js": {supportFile, "text/javascript; charset=utf-8", false},
		"/program.wasm": {programFile, "application/wasm", true},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { s.serveFile(w, r, file) })
	}
	mux.HandleFunc("GET /connect/join", func(w http.ResponseWriter, r *http.Request) { s.connect(w, r, func(c *conn) { s.o.Join(c) }) })
	mux.HandleFunc("GET /connect/coordinator", func(w http.ResponseWriter, r *http.Request) {
		s.connectTo(w, r, Target{Addresses: []string{s.o.Coordinator}})
	})
	mux.HandleFunc("GET /connect/accept/{secret}", func(w http.ResponseWriter, r *http.Request) {
		tab := protocol.TabHash(r.PathValue("secret"))
		call := s.proxy.call(tab)
		defer s.proxy.hangUp(tab, call)
		s.connect(w, r, func(c *conn) { s.proxy.wait(tab, call, c) })
	})
	mux.HandleFunc("GET /connect/peer/{ticket}", s.connectPeer)
	mux.HandleFunc("POST /leave", s.leave)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		mux.ServeHTTP(w, r)
	})
}

// file is a file of the page.
type file struct {
	name, kind string
	zipped     bool
}

func (s *Server) serveFile(w http.ResponseWriter, _ *http.Request, f file) {
	data, err := fs.ReadFile(s.o.Files, f.name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set("Cache-Control", "no-cache")
	if f.zipped {
		h.Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(data)
}

// leave reports that a page is closed.
func (s *Server) leave(w http.ResponseWriter, r *http.Request) {
	secret, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSecret))
	if err != nil {
		http.Error(w, fmt.Sprintf("expected at most %d bytes", maxSecret), http.StatusRequestEntityTooLarge)
		return
	}
	w.WriteHeader(http.StatusNoContent)
	if s.o.Left != nil {
		s.o.Left(string(secret))
	}
}

// connectPeer connects a tab to the peer that a ticket names.
func (s *Server) connectPeer(w http.ResponseWriter, r *http.Request) {
	target, ok := s.proxy.target(r.PathValue("ticket"))
	if !ok {
		s.o.Note("tab: %s: refused: the ticket of a peer is unknown, or its epoch has ended", r.RemoteAddr)
		http.Error(w, "the ticket is unknown, or its epoch has ended", http.StatusForbidden)
		return
	}
	s.connectTo(w, r, target)
}

// connectTo connects a tab to a peer.
func (s *Server) connectTo(w http.ResponseWriter, r *http.Request, target Target) {
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	peer, err := s.proxy.reach(ctx, target)
	if err != nil {
		s.o.Note("tab: a peer of %s cannot be reached: %v", r.RemoteAddr, err)
		http.Error(w, "the peer cannot be reached", http.StatusBadGateway)
		return
	}
	defer peer.Close()
	s.connect(w, r, func(c *conn) { pipe(c, peer) })
}
