package httpserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
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
	want := sha256.Sum256([]byte(s.o.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		timed := &timedWriter{ResponseWriter: w, timeout: s.o.WriteTimeout}
		defer timed.extend() // buffered bytes are written after the handler
		b := &body{ReadCloser: r.Body, left: s.o.MaxBody, max: s.o.MaxBody, connection: http.NewResponseController(w)}
		r.Body = b
		if r.ContentLength == 0 {
			b.end()
		}
		_ = b.connection.EnableFullDuplex() // a body can be read after the response is written; HTTP/1.0 has no need
		defer b.drain(timed, r)
		s.permit(timed, r)
		switch {
		case !s.knownHost(r.Host):
			s.o.Refuse(timed, http.StatusForbidden, "the Host header names another server")
		case s.o.Origins != nil && r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "":
			preflight(timed, r)
		case !s.anyOrigin() && s.origins.Check(r) != nil:
			s.o.Refuse(timed, http.StatusForbidden, "the request comes from a page of another origin")
		case s.o.Token != "" && !(s.o.Public != nil && s.o.Public(r)) && !bears(r, want):
			timed.Header().Set("WWW-Authenticate", "Bearer")
			s.o.Refuse(timed, http.StatusUnauthorized, "the header Authorization: Bearer TOKEN is missing, or its token is wrong")
		case r.ContentLength > s.o.MaxBody:
			s.o.Refuse(timed, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body: found %d bytes, expected at most %d",
				r.ContentLength, s.o.MaxBody))
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

// bears reports whether a request has the token with the hash want. Its time does not depend on the token that the
// request has.
func bears(r *http.Request, want [sha256.Size]byte) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// body reads at most max bytes of a request's body; more are a *http.MaxBytesError. It ends the deadline for reading at
// the end of the body: a deadline that expires later would cancel the context of the request.
type body struct {
	io.ReadCloser
	left, max  int64
	read       bool // a byte was asked for
	ended      bool
	connection *http.ResponseController
}

func (b *body) Read(p []byte) (int, error) {
	b.read = true
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		n, err = int(b.left), &http.MaxBytesError{Limit: b.max}
		b.left = 0
		return n, err
	}
	b.left -= int64(n)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *body) end() {
	b.ended = true
	_ = b.connection.SetReadDeadline(time.Time{})
}

// maxDrained bounds the bytes of a body that are read after the response.
const maxDrained = 1 << 30

// drain sends the response and reads what the handler left of the body. A client that sends all before it reads would
// otherwise find the connection reset in place of the response.
func (b *body) drain(w *timedWriter, r *http.Request) {
	if b.ended || !b.read && r.Header.Get("Expect") != "" { // the client sends no body until it is asked for it
		return
	}
	_ = w.FlushError() // the client may be gone
	if n, err := io.Copy(io.Discard, io.LimitReader(b.ReadCloser, maxDrained)); err == nil && n < maxDrained {
		b.end()
	}
}

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

// Flush and FlushError write the buffered bytes.
func (w *timedWriter) Flush() { _ = w.FlushError() }

func (w *timedWriter) FlushError() error {
	w.extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap serves http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
