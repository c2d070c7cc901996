package tab

import (
	"context"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/coder/websocket"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// files are a page whose program is no program.
func files() fstest.MapFS {
	return fstest.MapFS{"index.html": {Data: []byte("<title>page</title>")}, "style.css": {}, "page.js": {}, "worker.js": {},
		programFile: {Data: []byte("zipped")}, supportFile: {}}
}

// serve serves a page at a free port of this machine.
func serve(t *testing.T, o Options) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if o.Files == nil {
		o.Files = files()
	}
	o.Note = t.Logf
	s, err := Serve(l, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// address is the server's as a URL.
func (s *Server) address() string { return "http://" + s.listener.Addr().String() + "/" }

// echo returns what it reads, until the connection ends.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

func open(t *testing.T, url string, o *websocket.DialOptions) (net.Conn, *http.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	c, r, err := websocket.Dial(ctx, url, o)
	if err != nil {
		return nil, r, err
	}
	return websocket.NetConn(t.Context(), c, websocket.MessageBinary), r, nil
}

// talk checks that a connection returns what is written.
func talk(t *testing.T, c net.Conn) {
	t.Helper()
	text := strings.Repeat("tensor", 1<<16)
	go func() { _, _ = io.WriteString(c, text) }()
	got := make([]byte, len(text))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	assert.True(t, string(got) == text)
}

func TestFiles(t *testing.T) {
	s := serve(t, Options{})
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	for path, kind := range map[string]string{"": "text/html; charset=utf-8", "page.js": "text/javascript; charset=utf-8",
		"program.wasm": "application/wasm"} {
		r, err := client.Get(s.address() + path)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		assert.Equal(t, http.StatusOK, r.StatusCode, path)
		assert.Equal(t, kind, r.Header.Get("Content-Type"))
		assert.Contains(t, r.Header.Get("Content-Security-Policy"), "default-src 'none'")
		assert.Equal(t, "no-referrer", r.Header.Get("Referrer-Policy"))
		if path == "program.wasm" {
			assert.Equal(t, "gzip", r.Header.Get("Content-Encoding"))
			assert.Equal(t, "zipped", string(body))
		}
	}
	for _, path := range []string{"program.wasm.gz", "nothing", "connect", "../server.go"} {
		r, err := client.Get(s.address() + path)
		require.NoError(t, err)
		assert.NoError(t, r.Body.Close())
		assert.Equal(t, http.StatusNotFound, r.StatusCode, path)
	}
}

// The page that is part of the source names its files, and nothing elsewhere.
func TestPageNeedsNothingFromElsewhere(t *testing.T) {
	for _, name := range []string{"index.html", "style.css", "page.js", "worker.js"} {
		text, err := fs.ReadFile(Assets(), name)
		require.NoError(t, err)
		assert.NotContains(t, string(text), "//"+"cdn", name)
		assert.NotRegexp(t, `https?://`, string(text), name)
		assert.NotContains(t, string(text), "<style", name)
	}
}

func TestServeRefuses(t *testing.T) {
	listen := func(address string) net.Listener {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		return l
	}
	incomplete := files()
	delete(incomplete, programFile)
	_, err := Serve(listen("127.0.0.1:0"), Options{Files: incomplete})
	assert.ErrorIs(t, err, ErrNotBuilt)
	assert.ErrorContains(t, err, "make build")
	_, err = Serve(listen(":0"), Options{Files: files()})
	assert.ErrorContains(t, err, "needs a certificate")
}

func TestServeWithCertificate(t *testing.T) {
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	s, err := Serve(l, Options{Files: files(), Certificate: &other.TLS.Certificates[0]})
	require.NoError(t, err)
	defer s.Close()
	assert.True(t, strings.HasPrefix(s.URL("example.com"), "https://example.com:"))
	r, err := other.Client().Get(strings.Replace(s.URL("127.0.0.1"), "localhost", "127.0.0.1", 1))
	require.NoError(t, err)
	assert.NoError(t, r.Body.Close())
	assert.Equal(t, http.StatusOK, r.StatusCode)
}

func TestConnectionsReachTheirServers(t *testing.T) {
	remotes := make(chan string, 1)
	coordinator := echoServer(t)
	s := serve(t, Options{Coordinator: coordinator, Join: func(c net.Conn) {
		remotes <- c.RemoteAddr().String()
		echo(c)
	}})
	for _, path := range []string{"connect/join", "connect/coordinator"} {
		c, _, err := open(t, s.address()+path, nil)
		require.NoError(t, err)
		talk(t, c)
		assert.NoError(t, c.Close())
	}
	assert.Regexp(t, `^127\.0\.0\.1:\d+$`, <-remotes)
}

// echoServer serves connections at an address until the test ends.
func echoServer(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(c)
		}
	}()
	return l.Addr().String()
}

func TestOtherOriginsAreRefused(t *testing.T) {
	s := serve(t, Options{Join: echo})
	_, r, err := open(t, s.address()+"connect/join", &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"https://example.com"}}})
	require.Error(t, err)
	assert.Equal(t, http.StatusForbidden, r.StatusCode)
}

func TestTicketsOpenOnePeerForAnEpoch(t *testing.T) {
	peer := echoServer(t)
	s := serve(t, Options{})
	paths := s.Tickets(1, map[string]Target{"b": {Addresses: []string{"127.0.0.1:1", peer}}, "gone": {Addresses: []string{"127.0.0.1:1"}}})
	c, _, err := open(t, s.address()+"connect/"+paths["b"], nil)
	require.NoError(t, err)
	talk(t, c)
	refused := func(path string, status int) {
		t.Helper()
		_, r, err := open(t, s.address()+"connect/"+path, nil)
		require.Error(t, err)
		assert.Equal(t, status, r.StatusCode)
	}
	refused(paths["gone"], http.StatusBadGateway)
	refused("peer/"+strings.Repeat("A", 26), http.StatusForbidden)
	again := s.Tickets(2, map[string]Target{"b": {Addresses: []string{peer}}})
	refused(paths["b"], http.StatusForbidden)
	talk(t, c) // an open connection ends with its epoch's link
	c, _, err = open(t, s.address()+"connect/"+again["b"], nil)
	require.NoError(t, err)
	talk(t, c)
	require.NoError(t, s.Close())
	_, err = c.Read(make([]byte, 1))
	assert.Error(t, err, "the server is closed")
}

func TestTabsMeet(t *testing.T) {
	s := serve(t, Options{})
	path := s.Tickets(1, map[string]Target{"b": {Tab: protocol.TabHash("secret")}})["b"]
	for range 2 {
		_, _, err := open(t, s.address()+"connect/accept/secret", nil)
		require.NoError(t, err) // and is replaced by the next
		b, _, err := open(t, s.address()+"connect/accept/secret", nil)
		require.NoError(t, err)
		a, _, err := open(t, s.address()+"connect/"+path, nil)
		require.NoError(t, err)
		go func() {
			mark := make([]byte, 1)
			if _, err := io.ReadFull(b, mark); err == nil && mark[0] == Accepted {
				echo(b)
			}
		}()
		talk(t, a)
		assert.NoError(t, a.Close())
	}
}

func TestLeave(t *testing.T) {
	left := make(chan string, 1)
	s := serve(t, Options{Left: func(secret string) { left <- secret }})
	for body, status := range map[string]int{"secret": http.StatusNoContent,
		strings.Repeat("x", maxSecret+1): http.StatusRequestEntityTooLarge} {
		r, err := http.Post(s.address()+"leave", "text/plain", strings.NewReader(body))
		require.NoError(t, err)
		assert.NoError(t, r.Body.Close())
		assert.Equal(t, status, r.StatusCode)
	}
	assert.Equal(t, "secret", <-left)
}

// A tab meets on its newest call, though the connection of an earlier one be there first.
func TestNewestCall(t *testing.T) {
	accepted := make(chan *conn)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if assert.NoError(t, err) {
			accepted <- newConn(ws, r.RemoteAddr)
		}
	}))
	defer server.Close()
	accept := func() *conn {
		_, _, err := open(t, server.URL, nil)
		require.NoError(t, err)
		return <-accepted
	}
	p := newProxy()
	first, second := p.call("tab"), p.call("tab")
	met := make(chan net.Conn)
	go func() {
		c, err := p.meet(t.Context(), "tab")
		assert.NoError(t, err)
		met <- c
	}()
	early := accept()
	p.wait("tab", first, early)
	<-early.ended
	late := accept()
	p.wait("tab", second, late)
	assert.Same(t, late, <-met)
	p.hangUp("tab", first)
	assert.NotEmpty(t, p.waiting)
	p.hangUp("tab", second)
	assert.Empty(t, p.waiting)
	assert.NoError(t, late.Close())
}
