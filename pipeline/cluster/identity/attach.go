package identity

import "net"

// Attach serves a connection that reached this process in another way, such as through a WebSocket. TLS runs on top of
// it, from end to end, as on any other connection, and the limits for its remote address hold. Attach returns after the
// handshake; the server closes the connection.
func (s *JoinServer) Attach(c net.Conn) {
	if reason := s.listener.admit(c); reason != "" {
		s.o.Note("%s: refused: %s", c.RemoteAddr(), reason)
		_ = c.Close()
		return
	}
	s.listener.handshake(c)
}
