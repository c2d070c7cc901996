package transport

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// methods names the stream of each class.
var methods = [classes]string{Hot: "Hot", Bulk: "Bulk", Urgent: "Urgent"}

// serve accepts the connections of peers.
func (n *Node) serve(l net.Listener) {
	n.listener = newGuardedListener(l, n)
	t := n.options.timing
	n.server = grpc.NewServer(grpc.Creds(mutualTLS{n}), grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(maxFragment),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow), grpc.MaxHeaderListSize(maxMetadata),
		grpc.WriteBufferSize(ioBuffer), grpc.ReadBufferSize(ioBuffer), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(t.hello), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Second, Timeout: 4 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	d := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
	d.Streams = append(d.Streams, description("Control", func(_ any, s grpc.ServerStream) error { return n.acceptControl(s) }))
	for class, method := range methods {
		d.Streams = append(d.Streams, description(method, func(_ any, s grpc.ServerStream) error { return n.acceptData(Class(class), s) }))
	}
	n.server.RegisterService(d, nil)
	n.work.Go(func() {
		if err := n.server.Serve(n.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			n.notes.add("no further connections are accepted: %v", err)
		}
	})
}

// shutDown closes the connections that peers have dialed, after the reason had a moment to reach them.
func (n *Node) shutDown() {
	_ = n.listener.Close()
	timer := time.AfterFunc(n.options.timing.farewell, n.server.Stop)
	n.server.GracefulStop()
	timer.Stop()
	n.server.Stop()
}

// infoOf returns what the handshake found of a stream's connection.
func infoOf(s grpc.ServerStream) (connInfo, error) {
	if p, ok := peer.FromContext(s.Context()); ok {
		if info, ok := p.AuthInfo.(connInfo); ok {
			return info, nil
		}
	}
	return connInfo{}, status.Error(codes.Unauthenticated, "the connection is not secured")
}

// acceptControl serves a peer's control stream: its hello first.
func (n *Node) acceptControl(stream grpc.ServerStream) error {
	info, err := infoOf(stream)
	if err != nil {
		return err
	}
	s, err := n.welcome(info, stream)
	if err != nil {
		r := asRefusal(err)
		if r.Code != codeEarly && r.Code != Forgotten && r.Code != Refused { // no fault, or Sessions.Begin has noted it
			n.notes.add("member %s at %s is refused: %s", orUnknown(info.member), host(info.conn.RemoteAddr()), r.Text)
		}
		return n.bye(info.conn, r)
	}
	n.work.Go(func() { s.readControl(stream) })
	n.work.Go(func() { s.writeControl(stream) })
	s.watch()
	s.link.detach(s)
	n.forget(s)
	s.report()
	return n.bye(info.conn, asRefusal(s.cause()))
}

// register keeps a connection that has said hello, once.
func (n *Node) register(s *connection) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.connections[s.conn] != nil {
		return false
	}
	n.connections[s.conn] = s
	return true
}

func (n *Node) forget(s *connection) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.connections, s.conn)
}

func orUnknown(member string) string {
	if member == "" {
		return "?"
	}
	return member
}

// bye returns the status that ends a stream, and closes the connection when the peer had a moment to read it.
func (n *Node) bye(conn *watchedConn, r *Refusal) error {
	conn.settle()
	time.AfterFunc(n.options.timing.farewell, func() { _ = conn.Close() })
	return status.Error(r.Code, r.Text)
}

// welcome reads a hello, checks it, attaches the connection to the link, and answers.
func (n *Node) welcome(info connInfo, stream grpc.ServerStream) (*connection, error) {
	h, err := n.readHello(stream)
	if err != nil {
		return nil, err
	}
	if info.err != nil {
		return nil, refusalf(codeIdentity, "the certificate is refused: %v", info.err)
	}
	l, err := n.checkHello(h, info.member)
	if err != nil {
		return nil, err
	}
	s := newConnection(l, info.conn)
	if !n.register(s) {
		return nil, violationf("a second hello on one connection")
	}
	if err := l.attach(s, h); err != nil {
		n.forget(s)
		l.failOn(err)
		return nil, err
	}
	info.conn.greeted.Store(true)
	info.conn.settle()
	if err := sendControl(stream, l.hello().encodeWelcome()); err != nil {
		s.end(streamError(err))
	}
	return s, nil
}

// readHello waits for the first message of a control stream, but not for long.
func (n *Node) readHello(stream grpc.ServerStream) (hello, error) {
	type result struct {
		m   any
		err error
	}
	first := make(chan result, 1)
	n.work.Go(func() {
		m, err := receiveControl(stream)
		first <- result{m, err}
	})
	timer := time.NewTimer(n.options.timing.hello)
	defer timer.Stop()
	select {
	case r := <-first:
		if r.err != nil {
			return hello{}, asViolation(r.err)
		}
		switch m := r.m.(type) {
		case hello:
			return m, nil
		case *Refusal:
			return hello{}, m
		default:
			return hello{}, violationf("the first control message is %T, expected a hello", m)
		}
	case <-timer.C:
		return hello{}, refusalf(codeState, "no hello within %v", n.options.timing.hello)
	}
}

// checkHello returns the link that a hello is for.
func (n *Node) checkHello(h hello, member string) (*link, error) {
	self := n.options.Self
	switch {
	case h.version != protocolVersion:
		return nil, refusalf(codeState, "protocol version %d, expected %d", h.version, protocolVersion)
	case h.from != member:
		return nil, refusalf(codeIdentity, "it claims to be %q, but its certificate names %q", h.from, member)
	case h.to != self:
		return nil, refusalf(codeIdentity, "it wants member %q, but this is %q", h.to, self)
	case h.epoch == 0:
		return n.admit(h, member)
	}
	return n.linkOf(h, member)
}

// linkOf returns the link of an epoch, or with a neighbor, that a hello is for.
func (n *Node) linkOf(h hello, member string) (*link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	self := n.options.Self
	switch {
	case n.closed:
		return nil, refusalf(Left, hasLeft)
	case n.neighbors[member] != nil && n.neighbors[member].epoch == h.epoch:
		return n.neighbors[member], nil
	case h.epoch > n.epoch:
		return nil, refusalf(codeEarly, "epoch %d has not begun at member %s", h.epoch, self)
	case h.epoch < n.epoch:
		return nil, refusalf(codeState, "epoch %d is over, member %s is in epoch %d", h.epoch, self, n.epoch)
	}
	l := n.links[member]
	switch {
	case l == nil || l.session != nil:
		return nil, refusalf(codeIdentity, "member %q is not in epoch %d", member, n.epoch)
	case l.dials:
		return nil, refusalf(codeState, "member %s dials member %s, not the reverse", self, member)
	}
	return l, nil
}

// acceptData serves a stream of fragments. Its connection has said hello on the control stream.
func (n *Node) acceptData(class Class, stream grpc.ServerStream) error {
	info, err := infoOf(stream)
	if err != nil {
		return err
	}
	n.mu.Lock()
	s := n.connections[info.conn]
	n.mu.Unlock()
	if s == nil && info.conn.greeted.Load() {
		return n.bye(info.conn, refusalf(codeState, "the connection has ended"))
	}
	if s == nil {
		n.notes.add("a stream of member %s at %s is refused: it has not said hello", orUnknown(info.member), host(info.conn.RemoteAddr()))
		return n.bye(info.conn, refusalf(codeState, "a %v stream without a hello", class))
	}
	if !s.claim(class) {
		err := violationf("a second %v stream", class)
		s.end(err)
		return n.bye(info.conn, asRefusal(err))
	}
	s.serveData(class, stream)
	return n.bye(info.conn, asRefusal(s.cause()))
}
