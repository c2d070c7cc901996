package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
)

// rogue is a member with a valid certificate that sends what it likes.
type rogue struct {
	t testing.TB
	*dialed
}

// intrude connects a member of the run to another one and opens the control stream.
func intrude(t testing.TB, ca *authority, id string, target *member) *rogue {
	t.Helper()
	m := start(t, ca, id, "")
	raw, err := net.Dial("tcp", target.address())
	require.NoError(t, err)
	l := newLink(m.Node, target.peer(), 1, true)
	d := &dialed{link: l, conn: newWatchedConn(raw, func(bool) {})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.client, err = m.newClient(d.conn)
	require.NoError(t, err)
	t.Cleanup(func() { d.cancel(); _ = d.client.Close(); _ = d.conn.Close() })
	d.control, err = d.stream("Control")
	require.NoError(t, err)
	return &rogue{t, d}
}

// sayHello says hello as the protocol wants it, and opens the other streams.
func (r *rogue) sayHello() {
	r.t.Helper()
	r.send(r.link.hello().encode())
	m, err := receiveControl(r.control)
	require.NoError(r.t, err)
	require.IsType(r.t, welcome{}, m)
	for class, method := range methods {
		r.data[class], err = r.stream(method)
		require.NoError(r.t, err)
	}
}

func (r *rogue) send(b []byte) { require.NoError(r.t, sendControl(r.control, b)) }

func (r *rogue) sendFragment(b []byte) {
	require.NoError(r.t, r.data[Hot].SendMsg(mem.BufferSlice{mem.SliceBuffer(b)}))
}

// reason is what the target says when it ends the connection.
func (r *rogue) reason() string {
	r.t.Helper()
	for {
		if _, err := receiveControl(r.control); err != nil {
			return asViolation(err).Error()
		}
	}
}

// fragment is a first fragment that declares what it likes.
func fragment(sequence uint64, header, payload int, sizes ...uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{firstFragment}, sequence)
	b = binary.LittleEndian.AppendUint64(b, 1) // epoch
	b = binary.LittleEndian.AppendUint32(b, uint32(header))
	b = append(b, make([]byte, min(header, 2*maxHeader))...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(sizes)))
	for _, n := range sizes {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return append(b, make([]byte, payload)...)
}

// frames is a connection on which a test writes HTTP/2 frames by hand.
type frames struct {
	t    testing.TB
	conn *tls.Conn
	*http2.Framer
	headers bytes.Buffer
	encoder *hpack.Encoder
}

func openFrames(t testing.TB, config *tls.Config, target *member) *frames {
	t.Helper()
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", target.address(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	f := &frames{t: t, conn: conn, Framer: http2.NewFramer(conn, conn)}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.encoder = hpack.NewEncoder(&f.headers)
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	require.NoError(t, f.WriteSettings())
	return f
}

// request opens stream 1 for a method, with a header of a size beside those that gRPC needs.
func (f *frames) request(method string, size int) {
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", "/" + service + "/" + method},
		{":authority", "member"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"large", string(bytes.Repeat([]byte("x"), size))}} {
		require.NoError(f.t, f.encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	block := f.headers.Bytes()
	first := block[:min(len(block), 16<<10)]
	require.NoError(f.t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndHeaders: len(first) == len(block)}))
	for rest := block[len(first):]; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		_ = f.WriteContinuation(1, n == len(rest), rest[:n]) // the other side may have closed the connection
		rest = rest[n:]
	}
}

// status reads frames until the stream ends, and returns gRPC's status.
func (f *frames) status() string {
	f.t.Helper()
	require.NoError(f.t, f.conn.SetReadDeadline(time.Now().Add(waitLimit)))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "connection: " + err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range frame.Fields {
				if h.Name == "grpc-message" {
					return h.Value
				}
			}
		case *http2.RSTStreamFrame:
			return "reset: " + frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return "goaway: " + frame.ErrCode.String()
		}
	}
}
