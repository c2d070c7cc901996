package transport

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// elsewhere is a connection whose peer looks as if it were on another machine.
type elsewhere struct{ *net.TCPConn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func TestCongestionControlIsSetWhereTheKernelHasIt(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	tcp := conn.(*net.TCPConn)
	option := func() (name string, unsent int) {
		raw, err := tcp.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			require.NoError(t, err)
			unsent, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
			require.NoError(t, err)
		}))
		return name, unsent
	}
	own, _ := option()
	other := own // a kernel may have only one
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	require.NoError(t, err)
	for name := range strings.FieldsSeq(string(available)) {
		if name != own {
			other = name
		}
	}
	tune(tcp, other)
	name, unsent := option()
	assert.Equal(t, own, name, "loopback keeps the kernel's")
	assert.Equal(t, unsentBytes, unsent)
	tune(elsewhere{tcp}, "none such")
	name, _ = option()
	assert.Equal(t, own, name)
	tune(elsewhere{tcp}, other)
	name, _ = option()
	assert.Equal(t, other, name)
	tune(nil, other)
}
