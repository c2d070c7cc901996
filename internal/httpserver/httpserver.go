// Package httpserver serves HTTP to programs and browsers on this machine, and with a token to other machines.
//
// It listens on the loopback interface unless the address names another one, and another one needs a token. Requests
// under a foreign Host are refused, since they come from pages that point their own name at this machine (DNS
// rebinding). Requests that change something are refused from pages of other origins, and no header permits such pages
// to read a response, unless Options.Origins names them. Headers, bodies, connections and times are limited.
//
// A client proves the token by the header "Authorization: Bearer TOKEN". A page takes the token from the fragment of
// its URL, which browsers do not send, and adds the header to each fetch.
package httpserver

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Defaults of Options.
const (
	DefaultMaxBody        = 1 << 20
	DefaultMaxConnections = 256
	DefaultBodyTimeout    = 30 * time.Second
	DefaultWriteTimeout   = 30 * time.Second
	DefaultShutdown       = 5 * time.Second
)

const (
	maxHeader     = 16 << 10
	headerTimeout = 5 * time.Second
	idleTimeout   = 60 * time.Second
)

// Options configures [Start]. Fields that are 0 have the defaults above.
type Options struct {
	Address string // host:port, or a port on the loopback interface; port 0 is a free one
	Handler http.Handler
	Token   string                   // of all requests but public ones; "": none, on the loopback interface only
	Public  func(*http.Request) bool // reports whether a request needs no token, such as the request for a page; nil: none
	Hosts   []string                 // names under which requests may come besides the names of the loopback interface
	Origins []string                 // of other pages that may ask and read answers, such as "https://chat.example"; "*": any

	MaxBody        int64         // bytes of a request's body
	MaxConnections int           // at once; further ones wait
	BodyTimeout    time.Duration // for reading a request
	WriteTimeout   time.Duration // for each write: a client that reads more slowly is disconnected
	Shutdown       time.Duration // for requests in progress when the server closes

	// Refuse writes the response to a request that this package refuses; nil writes the message as text.
	Refuse func(w http.ResponseWriter, status int, message string)
}

// Server serves until Close.
type Server struct {
	o        Options
	origins  *http.CrossOriginProtection
	http     *http.Server
	listener net.Listener
	closing  chan struct{} // closed when the server begins to close
	closed   sync.Once
	serving  sync.WaitGroup
}

// Start listens and serves. It fails on a wrong address or token, and on an error of the network.
func Start(o Options) (*Server, error) {
	o.setDefaults()
	origins, err := trusted(o.Origins)
	if err != nil {
		return nil, err
	}
	l, err := listen(o)
	if err != nil {
		return nil, err
	}
	s := &Server{o: o, origins: origins, listener: l, closing: make(chan struct{})}
	s.http = &http.Server{
		Handler: s.handler(), MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: o.BodyTimeout,
		WriteTimeout: o.WriteTimeout, IdleTimeout: idleTimeout, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.Background(), closingKey{}, (<-chan struct{})(s.closing))
		},
	}
	s.serving.Go(func() { _ = s.http.Serve(&limited{l, make(chan struct{}, o.MaxConnections), s.closing}) })
	return s, nil
}

func (o *Options) setDefaults() {
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxConnections = cmp.Or(o.MaxConnections, DefaultMaxConnections)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, DefaultBodyTimeout)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, DefaultWriteTimeout)
	o.Shutdown = cmp.Or(o.Shutdown, DefaultShutdown)
	if o.Refuse == nil {
		o.Refuse = func(w http.ResponseWriter, status int, message string) { http.Error(w, message, status) }
	}
}

// Loopback reports whether only this machine reaches an address, as Options.Address has it.
func Loopback(address string) (bool, error) {
	at, err := resolve(address)
	return err == nil && at.IP.IsLoopback(), err
}

func resolve(address string) (*net.TCPAddr, error) {
	full := address
	if _, err := strconv.ParseUint(address, 10, 16); err == nil {
		full = net.JoinHostPort("127.0.0.1", address)
	}
	at, err := net.ResolveTCPAddr("tcp", full)
	if err != nil {
		return nil, fmt.Errorf("address: found %q, expected host:port or a port: %w", address, err)
	}
	return at, nil
}

// listen refuses addresses beyond the loopback interface where there is no token.
func listen(o Options) (net.Listener, error) {
	at, err := resolve(o.Address)
	if err != nil {
		return nil, err
	}
	if !at.IP.IsLoopback() && o.Token == "" {
		return nil, fmt.Errorf("address: found %q, which other machines reach: it needs a token", o.Address)
	}
	return net.ListenTCP("tcp", at)
}

// URL is the address of the server under the name of the host that it listens on.
func (s *Server) URL() string {
	at := s.listener.Addr().(*net.TCPAddr)
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(at.Port))
}

// Close stops listening, waits for requests in progress up to Options.Shutdown, and ends the remaining ones.
func (s *Server) Close() error {
	s.closed.Do(func() { close(s.closing) })
	ctx, cancel := context.WithTimeout(context.Background(), s.o.Shutdown)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // the connections that remain
	}
	s.serving.Wait()
	return nil
}

type closingKey struct{}

// Closing is closed when the server of a request begins to close. Handlers that stream without end return then.
func Closing(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(closingKey{}).(<-chan struct{})
	return c
}

// limited accepts a limited number of connections at once.
type limited struct {
	net.Listener
	slots   chan struct{}
	closing <-chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closing:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &slotted{Conn: c, free: func() { <-l.slots }}, nil
}

// slotted frees its slot when it is closed.
type slotted struct {
	net.Conn
	once sync.Once
	free func()
}

func (c *slotted) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.free)
	return err
}
