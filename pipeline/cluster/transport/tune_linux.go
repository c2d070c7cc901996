package transport

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsentBytes bounds what the kernel holds but has not sent. A hot message waits for no more than that.
const unsentBytes = 128 << 10

// tune sets the options of a TCP connection that the kernel has, and ignores the others. Congestion control stays the
// kernel's on loopback, where pacing costs time.
func tune(c net.Conn, congestion string) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	address, err := netip.ParseAddrPort(c.RemoteAddr().String())
	loopback := err == nil && address.Addr().Unmap().IsLoopback()
	_ = raw.Control(func(fd uintptr) {
		if congestion != "" && !loopback {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
		}
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
}
