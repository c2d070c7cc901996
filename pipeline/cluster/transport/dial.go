package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/gpupipe/gpupipe/internal/dial"
	"github.com/gpupipe/gpupipe/internal/sleep"
)

const (
	streamWindow = 16 << 20 // 1 Gbit/s for 100 ms, and some
	connWindow   = 64 << 20 // all streams, so that one that is not read does not stop the others
	ioBuffer     = 64 << 10
	maxMetadata  = 16 << 10
	maxStreams   = 2 + uint32(classes) // one more than there are, so that it can be refused with a reason
)

// dial keeps the link connected until it ends.
func (l *link) dial() {
	defer close(l.undialed)
	t := l.node.options.timing
	ctx, cancel := context.WithCancel(context.Background())
	l.node.work.Go(func() {
		<-l.done
		cancel()
	})
	longest := t.maxBackoff
	if l.neighbor {
		longest = neighborBackOff
	}
	for backoff := t.minBackoff; !l.neighbor || l.awaitDial(ctx); backoff = min(2*backoff, longest) {
		begin := time.Now()
		connected, err := l.connectOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > t.maxBackoff && connected {
			backoff = t.minBackoff
		}
		var r *Refusal
		refused := errors.As(err, &r)
		if refused && (r.Code == codeState || r.Code == codeOver) {
			backoff = t.maxBackoff // the peer has left the epoch, and this node is about to
		}
		if !connected {
			l.remember(err)
			l.failOn(err)
			switch {
			case l.session != nil:
				l.node.options.Sessions.Failed(l.session, err)
			case !l.neighbor && (!refused || r.Code != codeEarly && r.Code != Left):
				l.node.notes.add("no connection to member %s: %v", l.peer.ID, err)
			}
		}
		if !sleep.For(backoff, ctx.Done()) {
			return
		}
	}
}

// connectOnce dials and uses the connection until it ends. It reports whether the hello was answered.
func (l *link) connectOnce(ctx context.Context) (bool, error) {
	dialing, cancel := context.WithTimeout(ctx, l.node.options.timing.hello)
	defer cancel()
	raw, _, err := dial.First(dialing, l.peer.Addresses, l.node.options.Network.Dial)
	if err != nil {
		return false, err
	}
	conn := newWatchedConn(raw, func(bool) {})
	defer conn.Close()
	client, err := l.node.newClient(conn)
	if err != nil {
		return false, err
	}
	defer client.Close()
	c := &dialed{link: l, client: client, conn: conn}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer c.cancel()
	s, err := c.open(ctx)
	if err != nil {
		return false, conn.explain(err)
	}
	c.run(s)
	return true, s.cause()
}

// newClient makes a gRPC client that uses one connection and never another.
func (n *Node) newClient(conn net.Conn) (*grpc.ClientConn, error) {
	var once sync.Once
	dialer := func(context.Context, string) (net.Conn, error) {
		var c net.Conn
		once.Do(func() { c = conn })
		if c == nil {
			return nil, errors.New("the connection is used up")
		}
		return c, nil
	}
	return grpc.NewClient("passthrough:///member", grpc.WithContextDialer(dialer), grpc.WithTransportCredentials(mutualTLS{n}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxFragment)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow), grpc.WithMaxHeaderListSize(maxMetadata),
		grpc.WithWriteBufferSize(ioBuffer), grpc.WithReadBufferSize(ioBuffer), grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), grpc.WithUserAgent("gpupipe"),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}))
}

// dialed is the dialing side of a connection.
type dialed struct {
	link    *link
	client  *grpc.ClientConn
	conn    *watchedConn
	ctx     context.Context // of the streams
	cancel  context.CancelFunc
	control grpc.ClientStream
	data    [classes]grpc.ClientStream
}

func (c *dialed) stream(method string) (grpc.ClientStream, error) {
	d := description(method, nil)
	return c.client.NewStream(c.ctx, &d, "/"+service+"/"+method)
}

// open says hello and attaches the connection to the link.
func (c *dialed) open(ctx context.Context) (*connection, error) {
	stop := context.AfterFunc(ctx, c.cancel)
	defer stop()
	timer := time.AfterFunc(c.link.node.options.timing.hello, c.cancel)
	defer timer.Stop()
	s, err := c.exchange()
	if err != nil && c.ctx.Err() != nil {
		return nil, fmt.Errorf("member %s has not answered the hello within %v", c.link.peer.ID, c.link.node.options.timing.hello)
	}
	var remote remoteError
	if err != nil && c.control != nil && !errors.As(err, &remote) {
		timer := time.AfterFunc(c.link.node.options.timing.farewell, c.cancel)
		defer timer.Stop()
		c.refuse(asRefusal(err))
	}
	return s, err
}

func (c *dialed) exchange() (s *connection, err error) {
	if c.control, err = c.stream("Control"); err != nil {
		return nil, streamError(err)
	}
	if err := c.identify(); err != nil {
		return nil, err
	}
	// An error of sending is explained by the answer.
	_ = sendControl(c.control, c.link.hello().encode())
	m, err := receiveControl(c.control)
	if err != nil {
		return nil, asViolation(err)
	}
	answer, ok := m.(welcome)
	if !ok {
		return nil, violationf("a hello was answered by %T", m)
	}
	for class, method := range methods {
		if c.data[class], err = c.stream(method); err != nil {
			return nil, streamError(err)
		}
	}
	s = newConnection(c.link, c.conn)
	return s, c.link.attach(s, hello(answer))
}

// identify compares the certificate of the server with the member that was dialed.
func (c *dialed) identify() error {
	p, ok := peer.FromContext(c.control.Context())
	if !ok {
		return errors.New("the connection has no peer")
	}
	info, ok := p.AuthInfo.(connInfo)
	switch {
	case !ok:
		return errors.New("the connection is not secured")
	case info.err != nil:
		return refusalf(codeIdentity, "the certificate at the address of member %s is refused: %v", c.link.peer.ID, info.err)
	case info.member != c.link.peer.ID:
		return refusalf(codeIdentity, "the certificate at the address of member %s names %s", c.link.peer.ID, info.member)
	}
	return nil
}

// run carries messages until the connection ends.
func (c *dialed) run(s *connection) {
	var streams, reader, writer sync.WaitGroup
	for class := range classes {
		streams.Go(func() { s.serveData(class, c.data[class]) })
	}
	reader.Go(func() { s.readControl(c.control) })
	writer.Go(func() { s.writeControl(c.control) })
	s.watch()
	s.link.detach(s)
	var remote remoteError
	if err := s.cause(); !errors.As(err, &remote) {
		timer := time.AfterFunc(c.link.node.options.timing.farewell, c.cancel)
		writer.Wait()
		c.refuse(asRefusal(err), reader.Wait)
		timer.Stop()
	}
	c.cancel()
	_ = c.conn.Close()
	_ = c.client.Close()
	streams.Wait()
	reader.Wait()
	writer.Wait()
	s.report()
}

// refuse sends the reason why the connection ends, waits for the readers of the stream, and then until the peer has
// closed it.
func (c *dialed) refuse(r *Refusal, readers ...func()) {
	_ = sendControl(c.control, r.encode())
	_ = c.control.CloseSend()
	for _, wait := range readers {
		wait()
	}
	for {
		if _, err := receiveControl(c.control); err != nil {
			return
		}
	}
}

// asRefusal is what a peer reads of an error.
func asRefusal(err error) *Refusal {
	var r *Refusal
	var v *violation
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &v):
		return &Refusal{codeAbort, v.text}
	default:
		return &Refusal{codeState, err.Error()}
	}
}
