package httpserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// handler checks requests and limits them before it passes them on.
func (s *Server) handler() http.Handler {
	origins := http.NewCrossOriginProtection()
	want := sha256.Sum256([]byte(s.o.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		timed := &timedWriter{ResponseWriter: w, timeout: s.o.WriteTimeout}
		defer timed.extend() // what is buffered is written after the handler
		r.Body = &body{ReadCloser: http.MaxBytesReader(timed, r.Body, s.o.MaxBody), connection: http.NewResponseController(w)}
		if r.ContentLength == 0 {
			r.Body.(*body).end()
		}
		switch {
		case !s.knownHost(r.Host):
			s.o.Refuse(timed, http.StatusForbidden, "the Host header names another server")
		case origins.Check(r) != nil:
			s.o.Refuse(timed, http.StatusForbidden, "the request comes from a page of another origin")
		case s.o.Token != "" && !(s.o.Public != nil && s.o.Public(r)) && !bears(r, want):
			timed.Header().Set("WWW-Authenticate", "Bearer")
			s.o.Refuse(timed, http.StatusUnauthorized, "the header Authorization: Bearer TOKEN is missing, or its token is wrong")
		case r.ContentLength > s.o.MaxBody:
			timed.Header().Set("Connection", "close")
			s.o.Refuse(timed, http.StatusRequestEntityTooLarge, "the body is too large")
		default:
			timed.Header().Set("X-Content-Type-Options", "nosniff")
			s.o.Handler.ServeHTTP(timed, r)
		}
	})
}

// knownHost reports whether a request's Host is a name of this server. Only a token can be asked of a server that other
// machines reach, since it has any number of names.
func (s *Server) knownHost(host string) bool {
	if !s.listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return host == "localhost" || slices.Contains(s.o.Hosts, host)
}

// bears reports whether a request has the token with that hash, in a time that does not depend on what it has instead.
func bears(r *http.Request, want [sha256.Size]byte) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// body ends the deadline for reading at the end of the body. A deadline that expires later would cancel the context of
// the request.
type body struct {
	io.ReadCloser
	connection *http.ResponseController
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *body) end() { _ = b.connection.SetReadDeadline(time.Time{}) }

// timedWriter sets a deadline for each write.
type timedWriter struct {
	http.ResponseWriter
	timeout time.Duration
}

func (w *timedWriter) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.timeout))
}

func (w *timedWriter) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// Flush and FlushError write what is buffered.
func (w *timedWriter) Flush() { _ = w.FlushError() }

func (w *timedWriter) FlushError() error {
	w.extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap serves http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
